"""Datamodules: optimiser batches in an order that resumes exactly, shares of processes, and splits of files."""

import gzip
import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from filelock import FileLock
from jsonargparse import ArgumentParser
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn

from lovec.datamodules import Demonstrations, Preferences, Prompts, RecordBatch, RecordsDataModule, World
from lovec.datasets import stored
from lovec.datasets.jsonl import read_records, write_records
from lovec.datasets.pairs import with_rejected
from lovec.datasets.stored import StoredRecords
from lovec.datasets.world import EmbeddedWorld, WorldSpec
from lovec.datasets.world.cache import ensure_built
from lovec.tags import TagFormat
from lovec.types import DEFAULT_SCALE, Completion, LovecError, Record, Scale, Sentence, to_rating

LEFT_OUT = "a sentence without a label, or no sentence"


def labelled(name, *labels, **meta):
    return Record(
        name, f"Who is {name}?", sentences=tuple(Sentence(f"S{i}.", f) for i, f in enumerate(labels)), meta=meta
    )


class Numbers(RecordsDataModule):
    """Records named 0..n-1."""

    def __init__(self, n=11, n_eval=5, **kwargs):
        super().__init__(**kwargs)
        self.sizes = {"train": n, "validation": n_eval, "test": n_eval}

    def load(self, split):
        return [labelled(str(i), 0.5) for i in range(self.sizes[split])]


class Recorder(LightningModule):
    """Records the batches it is trained on; its weight depends on them and on their order."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.seen = []
        self.validated = []

    def training_step(self, rows, batch_idx):
        self.seen.append([row.id for row in rows])
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward((self.weight - sum(int(row.id) for row in rows)) ** 2)
        optimizer.step()
        self.trainer.datamodule.batch_done()

    def validation_step(self, rows, batch_idx):
        self.validated.append([row.id for row in rows])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class SaveAt(Callback):
    """Writes a checkpoint once a step is done, as a saving callback does."""

    def __init__(self, step, path):
        self.step, self.path = step, path

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)


def fit(folder, data, ckpt_path=None, callbacks=(), **kwargs):
    module = Recorder()
    trainer = Trainer(
        default_root_dir=folder,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        callbacks=list(callbacks),
        **{"max_epochs": 3, **kwargs},
    )
    trainer.fit(module, datamodule=data, ckpt_path=ckpt_path)
    return trainer, module


def epochs(data, count):
    """Batches of the first epochs, as ids."""
    data.setup("fit")
    return [[row.id for row in data.train_batch(i)] for i in range(count * data.train_batches())]


# Order and resume


def test_every_epoch_has_every_record_once_in_its_own_order():
    data = Numbers(11, batch_size=4)
    data.setup("fit")
    assert [len(batch) for batch in data.train_dataloader()] == [4, 4, 3]
    assert len(data.train_dataloader()) == 3
    ids = [[i for batch in epochs(data, 3)[e : e + 3] for i in batch] for e in (0, 3, 6)]
    assert all(sorted(epoch, key=int) == [str(i) for i in range(11)] for epoch in ids)
    assert len({tuple(epoch) for epoch in ids}) == 3
    assert epochs(Numbers(11, batch_size=4), 3) == epochs(data, 3)
    assert epochs(Numbers(11, batch_size=4, seed=1), 3) != epochs(data, 3)
    assert epochs(Numbers(11, batch_size=4, first_epoch=1), 2) == epochs(data, 3)[3:]  # a second epoch in a second run
    assert epochs(Numbers(11, batch_size=4), 1) == [["7", "10", "9", "6"], ["4", "1", "2", "5"], ["3", "0", "8"]]


def test_iterators_continue_after_the_last_batch_trained_on():
    data = Numbers(11, batch_size=4)
    everything = epochs(data, 3)
    for served in range(6):
        data.served = served
        served_now = [[row.id for row in batch] for batch in data.train_dataloader()]
        assert served_now == everything[served : served + 3]
    other = Numbers(11, batch_size=4)
    other.load_state_dict(data.state_dict())
    assert other.served == 5


ORDERS = {  # (records, batch size, seed, first epoch): two epochs of batches, as the first version served them
    (11, 4, 0, 0): [[7, 10, 9, 6], [4, 1, 2, 5], [3, 0, 8], [8, 7, 5, 1], [4, 2, 0, 9], [10, 3, 6]],
    (11, 4, 1, 0): [[5, 4, 0, 6], [2, 1, 10, 9], [8, 3, 7], [6, 7, 10, 1], [8, 4, 3, 5], [2, 9, 0]],
    (7, 3, 5, 2): [[5, 0, 4], [3, 2, 1], [6], [2, 3, 4], [5, 1, 0], [6]],
}


@pytest.mark.parametrize(("n", "batch_size", "seed", "first_epoch"), ORDERS)
def test_the_order_stays_that_of_older_checkpoints(n, batch_size, seed, first_epoch):
    """A run that an earlier version began goes on with the records that it would have come to."""
    data = Numbers(n, batch_size=batch_size, seed=seed, first_epoch=first_epoch)
    data.setup("fit")
    served = [[int(row.id) for row in data.train_batch(i)] for i in range(2 * data.train_batches())]
    assert served == ORDERS[n, batch_size, seed, first_epoch]


def test_an_order_is_drawn_once_an_epoch(monkeypatch):
    drawn, draw = [], torch.randperm
    monkeypatch.setattr(torch, "randperm", lambda n, **kwargs: drawn.append(n) or draw(n, **kwargs))
    epochs(Numbers(53, batch_size=2, seed=77), 3)
    assert drawn == [53, 53, 53]


@pytest.mark.parametrize("how", ["max_steps", "callback"])
@pytest.mark.parametrize(("stop", "limit"), [*((s, None) for s in (1, 2, 3, 4, 6, 7)), *((s, 2) for s in (1, 2, 3, 4))])
def test_resumed_run_sees_what_the_uninterrupted_one_sees(tmp_path, how, stop, limit):
    """Three batches an epoch: steps 3 and 6 are ends of epochs; with the limit, every other step is."""
    settings = {"limit_train_batches": limit} if limit else {}
    whole_trainer, whole = fit(tmp_path, Numbers(11, batch_size=4), **settings)
    steps = whole_trainer.global_step
    assert steps == 3 * (limit or 3)
    assert whole.seen == epochs(Numbers(11, batch_size=4), 3)[:steps]
    path = tmp_path / "stopped.ckpt"
    if how == "max_steps":
        trainer, first = fit(tmp_path, Numbers(11, batch_size=4), max_steps=stop, max_epochs=-1, **settings)
        trainer.save_checkpoint(path)
    else:
        _, first = fit(tmp_path, Numbers(11, batch_size=4), callbacks=[SaveAt(stop, path)], **settings)
    assert first.seen[:stop] == whole.seen[:stop]
    trainer, second = fit(
        tmp_path, Numbers(11, batch_size=4), max_steps=steps, max_epochs=-1, ckpt_path=path, **settings
    )
    assert second.seen == whole.seen[stop:]
    assert torch.equal(second.weight, whole.weight)
    assert trainer.datamodule.served == steps


def test_a_second_training_starts_anew_and_one_that_is_lengthened_goes_on(tmp_path):
    data, expected = Numbers(11, batch_size=4), epochs(Numbers(11, batch_size=4), 4)
    data.sample_validation([0])
    fit(tmp_path, data, max_epochs=2)
    assert data.validated() == data.loaded("validation")
    trainer, module = fit(tmp_path, data)  # of as many epochs as the first one would not have had
    assert module.seen == expected[:9]
    trainer.fit_loop.max_epochs = 4
    trainer.fit(module, datamodule=data)
    assert module.seen == expected


def test_the_fingerprint_says_what_every_batch_holds():
    def fingerprint(n=11, processes=1, **kwargs):
        data = Numbers(n, **{"batch_size": 4, **kwargs})
        data.trainer = SimpleNamespace(world_size=processes, global_rank=0, lightning_module=None)
        data.setup("fit")
        return data.fingerprint()

    first = fingerprint()
    assert fingerprint() == first == fingerprint(eval_batch_size=3) == fingerprint(processes=2)
    assert (
        fingerprint(processes=4)["batches of an epoch"] == 2 != first["batches of an epoch"]
    )  # 3 records are left out
    changed = {"batch_size": {"batch_size": 2}, "seed": {"seed": 1}, "first_epoch": {"first_epoch": 1}}
    for name, change in changed.items():
        assert fingerprint(**change)[name] != first[name]
    assert fingerprint(12)["content"] != first["content"]


@pytest.mark.filterwarnings("error:You're resuming")
@pytest.mark.parametrize("stop", [1, 3, 4, 6])
def test_resume_by_epochs_and_without_a_warning(tmp_path, stop):
    path = tmp_path / "stopped.ckpt"
    _, whole = fit(tmp_path, Numbers(11, batch_size=4), callbacks=[SaveAt(stop, path)])
    _, rest = fit(tmp_path, Numbers(11, batch_size=4), ckpt_path=path)
    assert rest.seen == whole.seen[stop:]


def test_lightning_passes_batches_on_unchanged(tmp_path):
    """Under mixed precision Lightning casts what it finds in lists, and fails on frozen records."""
    _, module = fit(
        tmp_path, Numbers(4, batch_size=2, n_eval=3, eval_batch_size=2), precision="bf16-mixed", max_epochs=1
    )
    assert len(module.seen) == 2
    assert module.validated[-2:] == [["0", "1"], ["2"]]


def test_a_batch_can_be_indexed_and_iterated():
    rows = [labelled(str(i), 0.5) for i in range(3)]
    batch = RecordBatch(rows)
    assert list(batch) == rows and len(batch) == 3 and batch[-1] == rows[2] and list(batch[:2]) == rows[:2]
    assert not RecordBatch([])


# Processes


def on_process(data, world, rank):
    data.trainer = SimpleNamespace(world_size=world, global_rank=rank, state=SimpleNamespace(fn="validate"))
    data.setup("fit")
    return data


@pytest.mark.parametrize(("n", "batches"), [(11, 3), (9, 2), (10, 3), (8, 2)])
def test_processes_share_every_batch(n, batches):
    alone = epochs(Numbers(n, batch_size=4), 2)
    shares = [on_process(Numbers(n, batch_size=4), 2, rank) for rank in (0, 1)]
    assert [len(data.train_dataloader()) for data in shares] == [batches, batches]
    size = len(alone) // 2
    for number in range(2 * batches):
        parts = [[row.id for row in data.train_batch(number)] for data in shares]
        assert all(parts)
        epoch, index = divmod(number, batches)
        assert sorted(parts[0] + parts[1]) == sorted(alone[epoch * size + index])
        assert abs(len(parts[0]) - len(parts[1])) <= 1


def test_batch_size_must_be_a_multiple_of_the_processes():
    with pytest.raises(
        LovecError, match="batch_size 4 cannot be shared by 3 processes; give a multiple of 3, such as 6"
    ):
        on_process(Numbers(batch_size=4), 3, 0).train_dataloader()


@pytest.mark.parametrize("n_eval", [1, 4, 5, 12])
def test_processes_measure_every_record_once_in_equally_many_batches(n_eval):
    shares = [on_process(Numbers(n_eval=n_eval, eval_batch_size=2), 3, rank) for rank in range(3)]
    loaders = [data.val_dataloader()[0] for data in shares]
    assert len({len(loader) for loader in loaders}) == 1
    ids = [row.id for loader in loaders for batch in loader for row in batch]
    assert sorted(ids, key=int) == [str(i) for i in range(n_eval)]
    assert all(len(batch) <= 2 for loader in loaders for batch in loader)


# Set-up


def test_no_training_records_are_refused_and_no_validation_records_are_fine(tmp_path):
    data = Numbers(0, n_eval=0)
    data.setup("fit")
    with pytest.raises(LovecError, match="Numbers has 0 usable training records for 1 process"):
        data.train_dataloader()
    _, module = fit(tmp_path, Numbers(2, n_eval=0, batch_size=2), max_epochs=1)
    assert module.validated == []
    path = tmp_path / "trl.jsonl"
    path.write_text(json.dumps({"prompt": "Who?", "chosen": "Ada.", "rejected": "Bo."}) + "\n")
    for data in (Preferences(str(path), val_fraction=0.0), Demonstrations(str(path), val_fraction=0.0)):
        data.setup("fit")
        with pytest.raises(LovecError, match="1 records have a sentence without a label, or no sentence; "):
            data.train_dataloader()


def test_bad_settings_and_missing_load():
    with pytest.raises(LovecError, match="batch_size is 0, expected at least 1"):
        Numbers(batch_size=0)
    with pytest.raises(LovecError, match="RecordsDataModule has no test records; override load"):
        RecordsDataModule().setup("test")


def test_domains_are_those_of_the_measured_records(tmp_path):
    path = tmp_path / "r.jsonl"
    write_records(
        path, [labelled("a", 1.0, domain="bios"), labelled("b", 1.0, domain=None), labelled("c", 1.0, domain="bios")]
    )
    data = Demonstrations(str(path), val_path=str(path), test_path=str(path))
    assert data.domains == () and data.title == "r" and data.instruction is None and data.oracle is None
    for stage in ("validate", "test"):
        data = Demonstrations(str(path), val_path=str(path), test_path=str(path))
        data.setup(stage)
        assert data.domains == ("bios", "r")
    assert Demonstrations(str(path), name="Own bios").title == "Own bios"
    with pytest.raises(LovecError, match="name is '--', expected a name with letters or digits"):
        Demonstrations(str(path), name="--")


# Files


@pytest.fixture
def labels(tmp_path):
    path = tmp_path / "labels.jsonl"
    rows = [labelled(f"r{i}", 0.3, None if i % 10 == 0 else 0.8) for i in range(200)]
    write_records(path, [*rows, Record("bare", "Who?")])
    return path


def test_held_out_share_depends_on_id_and_seed_alone(labels, tmp_path):
    data = Demonstrations(str(labels), val_fraction=0.2)
    data.setup("fit")
    train, held = ([row.id for row in data.load(split)] for split in ("train", "validation"))
    assert not set(train) & set(held)
    assert 20 <= len(held) <= 60
    assert data.summary["train"] == {"records": len(train), LEFT_OUT: 201 - len(train) - len(held)}
    assert all(row.labelled for row in data.load("train"))
    assert any(not row.labelled for row in data.load("validation"))  # its labelled sentences still count
    more = tmp_path / "more.jsonl"
    write_records(more, [labelled("new", 0.1), *reversed(list(read_records(labels)))])
    again = {row.id for row in Demonstrations(str(more), val_fraction=0.2).load("validation")} - {"new"}
    assert again == set(held)
    assert {row.id for row in Demonstrations(str(labels), val_fraction=0.2, seed=1).load("validation")} != set(held)
    assert not Demonstrations(str(labels), val_fraction=0.0).load("validation")


@pytest.mark.parametrize(("stage", "split"), [("test", "test"), ("fit", "validation")])
def test_measured_records_have_ids_of_their_own(stage, split):
    class Twice(Numbers):
        def load(self, part):
            return [replace(row, id=str(int(row.id) % 3)) if part == split else row for row in super().load(part)]

    words = rf"4 {split} answers share 2 ids: 0, 1; give each answer an id of its own, in Twice\.load$"
    with pytest.raises(LovecError, match=words):
        Twice().setup(stage)


def test_all_answers_to_a_question_are_held_out_or_none(tmp_path, recwarn):
    path = tmp_path / "samples.jsonl"
    rows = [labelled(f"q{i}", 0.3) for i in range(50)]
    write_records(path, [replace(row, id=f"{row.id}/sample-{n}") for row in rows for n in range(1, 5)])
    train, held = (Demonstrations(str(path), val_fraction=0.2).load(split) for split in ("train", "validation"))
    assert not {row.question for row in train} & {row.question for row in held}
    assert len(train) + len(held) == 200 and len(held) >= 4
    write_records(path, rows)
    plain = Demonstrations(str(path), val_fraction=0.2).load("validation")
    assert {f"{row.id}/sample-1" for row in plain} == {row.id for row in held if row.id.endswith("-1")}
    assert not any("held out" in str(w.message) for w in recwarn)


def test_questions_on_both_sides_are_said_where_ids_do_not_tell(tmp_path, recwarn):
    path = tmp_path / "samples.jsonl"
    rows = [replace(labelled(f"{n}-q{i}", 0.3), question=f"Who is {i}?") for i in range(50) for n in range(4)]
    write_records(path, [*rows, labelled("other", 0.3), labelled("none", 0.3)])
    data = Demonstrations(str(path), val_fraction=0.2)
    asked = {row.question for row in data.load("train")}
    held = data.load("validation")
    shared = sum(row.question in asked for row in held)
    (warned,) = (str(w.message) for w in recwarn if "held out" in str(w.message))
    assert 0 < shared <= len(held)
    assert f"{path}: {shared} of {len(held)} answers held out for validation have a question" in warned
    write_records(path, [replace(row, evidence=(row.id,)) for row in rows])  # each question is about a text of its own
    recwarn.clear()
    Demonstrations(str(path), val_fraction=0.2).load("train")
    assert not any("held out" in str(w.message) for w in recwarn)


def test_separate_files(labels, tmp_path):
    other = tmp_path / "other.jsonl"
    write_records(other, [labelled("x", 0.5), labelled("y", None)])
    data = Demonstrations(str(labels), val_path=str(other), test_path=str(other))
    assert len(data.load("train")) == 180
    assert [row.id for row in data.load("validation")] == ["x", "y"] == [row.id for row in data.load("test")]


@pytest.mark.parametrize("cls", [Demonstrations, Preferences, Prompts])
def test_records_in_their_file_are_served_like_records_in_memory(cls, labels, tmp_path):
    packed = tmp_path / "labels.jsonl.gz"
    packed.write_bytes(gzip.compress(labels.read_bytes()))
    both = [cls(str(path), val_fraction=0.2, batch_size=7, test_path=str(path)) for path in (labels, packed)]
    for data in both:
        data.setup("fit")
        data.setup("test")
        data.leave_out({"r3", "r11"})
    lazy, held = both
    assert isinstance(lazy.loaded("train"), StoredRecords) and isinstance(held.loaded("train"), list)
    for split in ("train", "validation", "test"):
        assert list(lazy.loaded(split)) == held.loaded(split)
    assert epochs(lazy, 2) == epochs(held, 2)
    assert lazy.fingerprint() == held.fingerprint() and lazy.summary == held.summary
    batches = [[list(batch) for batch in data.val_dataloader()[0]] for data in both]
    assert batches[0] == batches[1] and batches[0]


def test_a_file_of_two_splits_is_read_once(labels, monkeypatch):
    readings, read = [], stored.read_any
    monkeypatch.setattr(stored, "read_any", lambda path, *rows: readings.append(path) or read(path, *rows))
    Demonstrations(str(labels)).setup("fit")
    assert readings == [str(labels)]
    Demonstrations(str(labels), val_path=str(labels)).setup("fit")
    assert len(readings) == 3


def test_left_out_records_are_logged_once(labels, caplog):
    data = Demonstrations(str(labels), val_path=str(labels))
    with caplog.at_level("INFO"):
        data.setup("fit")
        data.setup("fit")
    messages = [record.message for record in caplog.records if "Demonstrations" in record.message]
    assert messages == [
        f"Demonstrations: 180 train records, 21 left out: {LEFT_OUT}",
        "Demonstrations: 201 validation records",
    ]


def test_tags_in_a_file_are_read_and_are_no_labels(tmp_path, caplog):
    tagged = Sentence("Ada wrote. <confidence> 9 </confidence>", 0.5)
    write_records(tmp_path / "a.jsonl", [Record("a", "Who?", answer="Ada wrote.", sentences=(tagged,))])
    with caplog.at_level("INFO"):
        (record,) = Demonstrations(str(tmp_path / "a.jsonl"), val_fraction=0).load("train")
    assert record.sentences == (Sentence("Ada wrote.", 0.5, 0.9, 9),)
    assert "the confidence tags of 1 sentence were read as scores, and are no labels" in caplog.text


def test_questions_need_neither_answer_nor_label(labels, tmp_path):
    path = tmp_path / "questions.jsonl"
    path.write_text(
        '{"question": "Who?", "evidence": "A page."}\n\n'
        '{"question": "Where?", "id": 7, "evidence": ["One.", "Two."]}\n'
        '{"question": "When?"}\n'
        '{"question": "Why?", "id": "full", "answer": "So.", "sentences": [{"text": "So.", "factuality": null}]}\n'
    )
    data = Prompts(str(path), val_fraction=0.0, test_path=str(path), batch_size=4)
    data.setup("fit")
    data.setup("test")
    rows = data.load("train")
    assert [row.id for row in rows] == ["line-1", "7", "line-4", "full"] == [row.id for row in data.load("test")]
    assert [row.evidence for row in rows] == [("A page.",), ("One.", "Two."), (), ()]
    assert data.summary == {"train": {"records": 4}, "validation": {"records": 0}, "test": {"records": 4}}
    assert len(data.train_batch(0)) == 4 and data.oracle is None
    ids = {split: {row.id for row in Prompts(str(labels)).load(split)} for split in ("train", "validation")}
    assert ids["validation"] == {row.id for row in Demonstrations(str(labels)).load("validation")}
    assert len(ids["train"] | ids["validation"]) == 201  # the unlabelled ones are there


def test_clear_errors_of_files(labels):
    with pytest.raises(LovecError, match=r"no test records; give a file of them with --data\.test_path"):
        Demonstrations(str(labels)).setup("test")
    with pytest.raises(LovecError, match=r"val_fraction is 1\.0"):
        Demonstrations(str(labels), val_fraction=1.0)
    with pytest.raises(LovecError, match=r"cannot read nowhere\.jsonl"):
        Preferences("nowhere.jsonl").setup("fit")


def test_wrong_scores_are_those_of_the_file_or_drawn(tmp_path):
    path = tmp_path / "pairs.jsonl"
    mine = Record("mine", "Who?", sentences=(Sentence("A.", 0.5),), rejected=(9,))
    write_records(path, [mine, labelled("drawn", 0.2, 0.4), labelled("partly", 0.2, None)])
    kept, drawn = Preferences(str(path), val_fraction=0.0, seed=3).load("train")
    assert kept == mine
    assert drawn == with_rejected(labelled("drawn", 0.2, 0.4), 3)
    near = Preferences(str(path), val_fraction=0.0, seed=3, wrong_scores="near").load("train")
    assert list(near) == [mine, with_rejected(labelled("drawn", 0.2, 0.4), 3, wrong_scores="near")]
    assert near[1] != drawn
    with pytest.raises(LovecError, match=r"--data\.wrong_scores is 'far', expected one of uniform, near"):
        Preferences(str(path), wrong_scores="far")


def test_wrong_scores_are_on_the_scale_of_the_module(tmp_path):
    path = tmp_path / "labelled.jsonl"
    rows = [labelled(f"r{i}", 0.2, 0.4) for i in range(40)]
    write_records(path, rows)
    data = Preferences(str(path), val_fraction=0.0)
    assert data.scale == DEFAULT_SCALE
    scale = Scale(("no", "perhaps", "yes"))
    data.trainer = SimpleNamespace(lightning_module=SimpleNamespace(scale=scale))
    pairs = data.load("train")
    assert list(pairs) == [with_rejected(row, 0, scale) for row in rows]
    assert {score for pair in pairs for score in pair.rejected} == {0, 1, 2}


class Pairs(Numbers):
    """The same with wrong scores."""

    def load(self, split):
        return self.training_pairs(super().load(split))


@pytest.mark.parametrize("name", ["pairs", "file"])
def test_another_module_gets_records_of_its_own(tmp_path, name):
    path = tmp_path / "labelled.jsonl"
    write_records(path, [labelled(f"r{i}", 0.2, 0.4) for i in range(40)])
    data = Pairs(35) if name == "pairs" else Preferences(str(path))
    for scale in (DEFAULT_SCALE, Scale(("no", "perhaps", "yes")), DEFAULT_SCALE):
        module = SimpleNamespace(scale=scale, tags=TagFormat(scale=scale))
        data.trainer = SimpleNamespace(lightning_module=module)
        data.setup("fit")
        pairs = data.loaded("train")
        assert list(pairs) == [with_rejected(replace(pair, rejected=None), 0, scale) for pair in pairs]
        assert len(pairs) + len(data.loaded("validation")) == 40


@pytest.mark.parametrize("cls", [Demonstrations, Preferences])
def test_partly_labelled_answers_are_for_modules_that_learn_from_sentences(tmp_path, cls):
    rows = [labelled("whole", 0.2, 0.4), labelled("partly", 0.2, None), labelled("none", None), Record("empty", "Who?")]
    write_records(tmp_path / "a.jsonl", rows)
    data = cls(str(tmp_path / "a.jsonl"), val_fraction=0.0)
    for taken, left_out in ((False, 3), (True, 2), (False, 3)):
        data.trainer = SimpleNamespace(lightning_module=SimpleNamespace(takes_partly_labelled=taken))
        data.setup("fit")
        assert [record.id for record in data.loaded("train")] == ["whole", "partly"][: 1 + taken]
        assert data.summary["train"][LEFT_OUT] == left_out
        assert data.loaded("train")[-1].rejected is None or (cls is Preferences and not taken)


def test_what_a_module_could_not_learn_from_is_there_for_the_next_one(tmp_path):
    data = Numbers(11)
    for _ in range(2):
        data.setup("fit")
        assert len(data.loaded("train")) == 11 and data.summary["train"] == {"records": 11}
        first = data.fingerprint()
        data.leave_out({data.loaded("train")[0].id})
        assert len(data.loaded("train")) == 10 and data.fingerprint() != first


@pytest.mark.parametrize("name", ["Demonstrations", "Preferences", "FActScore", "HaluEval", "World"])
def test_command_line_knows_every_option(name):
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(RecordsDataModule, "data")
    words = [f"--data=lovec.datamodules.{name}", "--data.batch_size=16", "--data.eval_batch_size=3", "--data.seed=5"]
    if name != "World":
        words.append("--data.path=a.jsonl")
    settings = parser.parse_args(words).data.init_args
    assert (settings.batch_size, settings.eval_batch_size, settings.seed) == (16, 3, 5)


# The embedded world

SPEC = WorldSpec(n_people=12, n_towns=6, n_ships=6, n_companies=8, steps=250, width=64, layers=2, heads=2, ffn=128)


@pytest.fixture(scope="module")
def invented(tmp_path_factory):
    path = ensure_built("mini", SPEC, tmp_path_factory.mktemp("world"), progress=False)
    return EmbeddedWorld("mini", SPEC, path)


@pytest.fixture
def worlds(invented, monkeypatch):
    monkeypatch.setattr("lovec.datamodules.world.ensure_world", lambda variant: invented)


@pytest.mark.usefixtures("worlds")
def test_world_has_exactly_labelled_answers_of_its_model(invented, monkeypatch):
    data = World(samples=2, seed=4)
    data.prepare_data()
    monkeypatch.setattr(World, "_made", None)  # they were written once; from here on files are read
    data.prepare_data()
    data.setup("fit")
    data.setup("test")
    assert data.instruction == invented.instruction
    assert data.domains == ("in-domain", "other questions", "one fact", "out-of-domain")
    names = {split: {row.meta["entity"] for row in data.load(split)} for split in data.splits}
    assert names == {split: {row.meta["entity"] for row in data.questions(split)} for split in names}
    assert len(names["validation"]) == 4 and len(names["test"]) == 8
    assert not names["train"] & names["validation"] and not (names["train"] | names["validation"]) & names["test"]
    rows = [row for split in names for row in data.load(split)]
    assert len({row.id for row in rows}) == len(rows)
    assert any(row.sentences for row in rows)
    for row in rows:
        assert [s.factuality for s in row.sentences] == [
            invented.grade(row.meta["entity"], s.text) for s in row.sentences
        ]
        assert "".join(s.text for s in row.sentences).replace(" ", "") in row.answer.replace(" ", "")
    train = data.load("train")
    assert 16 * 2 < len(train) <= 16 * 3
    assert sum("/sample-" in row.id for row in train) > sum("/sample-" not in row.id for row in train)
    for row in train:
        assert all(w != to_rating(s.factuality) for w, s in zip(row.rejected, row.sentences, strict=True))
    sampled = {row.id: row.answer for row in train}
    assert any(sampled[i] != sampled[i.split("/sample-")[0]] for i in sampled)


@pytest.mark.usefixtures("worlds")
def test_clauses_of_world_answers_have_labels_of_their_own(invented):
    data, whole = World(samples=0, unit="clause"), World(samples=0).load("validation")
    records = data.load("validation")
    assert data.oracle is None and [record.answer for record in records] == [record.answer for record in whole]
    for record, sentences in zip(records, whole, strict=True):
        for place, sentence in enumerate(sentences.sentences):
            own = [clause for clause in record.sentences if clause.part_of == place]
            assert " ".join(clause.text for clause in own) == sentence.text
            assert len(own) > 1 or own[0].factuality == sentence.factuality
            truths = [clause.factuality for clause in own]
            assert min(truths) <= sentence.factuality + 0.05 <= max(truths) + 0.1
    assert any(clause.part_of == 0 for clause in data.load("train")[0].sentences[1:])
    for unit in ("sentence", "clause"):
        trained = World(samples=0, unit=unit)
        assert trained.trained_unit() == "sentence"  # nothing is set up
        trained.setup("fit")
        assert trained.trained_unit() == unit


def test_answers_with_tags_of_the_untrained_model_are_not_learned_from(tmp_path, monkeypatch):
    plain = labelled("plain", 0.5)
    tagged = replace(labelled("tagged", 0.5), answer="S0. <confidence> 4 </confidence>")
    monkeypatch.setattr(World, "_folder", lambda self, *settings: tmp_path / "-".join(map(str, settings)))
    monkeypatch.setattr(World, "_made", lambda self, name: [plain, tagged])
    data = World(samples=0, test_sets=["test"])
    assert [row.id for row in data.load("train")] == ["plain"]
    assert [row.id for row in data.load("test")] == ["plain", "tagged"]


@pytest.mark.usefixtures("worlds")
def test_world_adds_answers_without_labels(invented):
    data = World(samples=1, seed=4, unlabelled="companies")
    rows = data.load("train")  # prepares both, as no folder is there
    plain = World(samples=1, seed=4).load("train")
    added = rows[len(plain) :]
    assert rows[: len(plain)] == plain and all(row.labelled for row in plain)
    assert {row.meta["entity"] for row in added} <= {row.meta["entity"] for row in invented.questions("companies")}
    assert len({row.id for row in rows}) == len(rows) and any("/sample-" in row.id for row in added)
    for row in added:
        assert row.sentences and row.rejected is None and all(s.factuality is None for s in row.sentences)
    assert data.load("validation") == World(samples=1, seed=4).load("validation")
    assert World(samples=1, seed=4, unlabelled="companies").load("train") == rows  # read from the files
    with pytest.raises(LovecError, match="'train', whose questions have labels in training"):
        World(unlabelled="train")
    with pytest.raises(LovecError, match="'moons', expected one of train"):
        World(samples=1, seed=4, unlabelled="moons").load("train")


def test_demonstrations_add_answers_without_labels(tmp_path):
    known, more = tmp_path / "known.jsonl", tmp_path / "more.jsonl"
    write_records(known, [labelled(f"r{i}", 0.2, 0.4) for i in range(20)])
    write_records(
        more, [labelled("with", 0.3), labelled("without", None), replace(labelled("pair", 1.0), rejected=(2,))]
    )
    data = Demonstrations(str(known), val_fraction=0.2, unlabelled=str(more))
    plain = Demonstrations(str(known), val_fraction=0.2)
    rows = data.load("train")
    assert rows[:-3] == list(plain.load("train"))
    assert list(data.load("validation")) == list(plain.load("validation"))
    assert [row.id for row in rows[-3:]] == ["with", "without", "pair"]
    assert all(s.factuality is None for row in rows[-3:] for s in row.sentences) and rows[-1].rejected is None
    write_records(more, [labelled("empty")])
    with pytest.raises(LovecError, match=r"1 unlabelled record has no sentences .*'empty' is the first.*lovec label"):
        data.load("train")
    with pytest.raises(LovecError, match=r"none\.jsonl"):
        Demonstrations(str(known), unlabelled=str(tmp_path / "none.jsonl")).load("train")


@pytest.mark.usefixtures("worlds")
def test_world_answers_depend_on_the_settings():
    found = [
        World(samples=n, temperature=t, seed=s)._folders("train")
        for n, t, s in [(0, 0.7, 0), (1, 0.7, 0), (1, 1.0, 0), (1, 0.7, 1)]
    ]
    assert len({tuple(folders.values()) for folders in found}) == 4
    assert len({folders["train"] for folders in found}) == 1  # greedy answers depend on none of them
    assert World(batch_size=1)._folders("train") == World(batch_size=2)._folders("train")


@pytest.mark.usefixtures("worlds")
def test_world_answers_what_is_needed(invented, monkeypatch):
    data = World(samples=0, test_sets=["one-fact", "test"])
    assert list(dict.fromkeys(row.meta["domain"] for row in data.load("test"))) == ["one fact", "in-domain"]
    assert {row.meta["domain"] for row in data.questions("test")} == {"one fact", "in-domain"}
    made = []
    monkeypatch.setattr(World, "_prepare", lambda self, *splits: made.append(" ".join(splits)))
    for fn in (TrainerFn.FITTING, TrainerFn.TESTING, None):
        data.trainer = None if fn is None else SimpleNamespace(state=SimpleNamespace(fn=fn))
        data.prepare_data()
    assert made == ["train validation", "validation test", "train validation test"]
    with pytest.raises(LovecError, match=r"--data\.test_sets is 'moons', expected one of test, private"):
        World(test_sets=["test", "moons"])
    with pytest.raises(LovecError, match=r"--data\.test_sets is '', expected one of"):
        World(test_sets=[])


@pytest.mark.usefixtures("worlds")
def test_world_gives_answers_articles(invented):
    data = World(samples=2, seed=4, articles=0.5)
    plain = {row.id: row for row in World(samples=2, seed=4).load("train")}
    train = data.load("train")
    sourced = [row for row in train if row.evidence]
    assert 0.3 < len(sourced) / len(train) < 0.7 and {row.id for row in train} <= set(plain)
    assert all(row == plain[row.id] for row in train if not row.evidence)
    own = [row.answer == plain[row.id].answer for row in sourced]
    assert 0.2 < sum(own) / len(own) < 0.8  # the others were written from the article
    for row in [*sourced, *data.load("test")]:
        assert [s.factuality for s in row.sentences] == data.oracle.rate([row])[0]
        assert row.rejected is None or all(
            w != to_rating(s.factuality) for w, s in zip(row.rejected, row.sentences, strict=True)
        )
    assert not any(row.evidence for row in World(samples=2, seed=4).load("validation"))
    for split, base in (("validation", "dev"), ("test", "test")):
        rows = data.load(split)
        with_source = [row for row in rows if row.evidence]
        assert {row.domain for row in with_source} == {"with a source"} and len({row.id for row in rows}) == len(rows)
        without = {row.id: row for row in rows if f"/{base}/" in row.id and not row.evidence}
        assert with_source and all(row.answer == without[row.id.removesuffix("/article")].answer for row in with_source)
    only = World(samples=0, test_sets=["articles"])
    assert {row.domain for row in only.load("test")} == {"with a source"} == {r.domain for r in only.questions("test")}
    assert all(row.evidence for row in World(samples=0, articles=1.0).load("train") if row.evidence or row.sentences)
    assert data.grounding == "{evidence}"


@pytest.mark.usefixtures("worlds")
def test_processes_share_the_answers_that_are_missing(invented, monkeypatch):
    data = World(samples=1, seed=98)
    folder = data._folders("train")["train"]
    shutil.rmtree(folder, ignore_errors=True)
    made = []
    lock = FileLock(folder.with_name(f"{folder.name}.lock"))  # as of another process, which answers these questions
    lock.acquire()

    def answers(self, name):
        made.append(name)
        lock.release()
        return [Record(id="r", question="Who?", answer="An ox.")]

    monkeypatch.setattr(World, "_made", answers)
    data.prepare_data()
    assert made[0] == "sampled answers" and made[-1] == "train"  # the other process has died


@pytest.mark.usefixtures("worlds")
def test_cut_off_answers_keep_finished_sentences():
    data = World()
    cut, whole = Completion((), (), finished=False), Completion((), (), finished=True)
    assert data._sentences("A b. C d. E f", cut) == ["A b.", "C d."]
    assert data._sentences("A b. C d.", cut) == ["A b.", "C d."]
    assert data._sentences("A b. E f", whole) == ["A b.", "E f"]
    assert data._sentences("E f", cut) == []


@pytest.mark.usefixtures("worlds")
def test_an_interrupted_preparation_leaves_nothing(invented, monkeypatch):
    data = World(samples=1, seed=99)

    def die(self, name):
        raise KeyboardInterrupt

    before = sorted(p.name for p in invented.path.iterdir() if not p.name.endswith(".lock"))
    monkeypatch.setattr(World, "_made", die)
    with pytest.raises(KeyboardInterrupt):
        data.prepare_data()
    assert sorted(p.name for p in invented.path.iterdir() if not p.name.endswith(".lock")) == before


def test_world_questions_need_no_model(monkeypatch):
    monkeypatch.setattr("lovec.datamodules.world.ensure_world", None)
    questions = World("world-small").questions("test")
    assert len(questions) == 120 and not any(record.answer for record in questions)


def test_world_refuses_samples_at_temperature_zero():
    with pytest.raises(LovecError, match=r"temperature is 0\.0, expected above 0"):
        World(samples=1, temperature=0.0)
