"""What is refused before the first step, by name: records that cannot be learned from, and settings of optimisers."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import cli
from tinyrollouts import grpo, scripted
from tinyrun import Rows, fit, module, records, tiny, trainer
from transformers import AutoTokenizer

from lovec.callbacks.lengths import long_answers
from lovec.datamodules import Demonstrations
from lovec.datasets.jsonl import write_records
from lovec.datasets.stored import StoredRecords, size_of
from lovec.encoding import Encoder
from lovec.modules import (
    DPO,
    GRPO,
    ORPO,
    SFT,
    Batch,
    EvaluationConfig,
    ExpectedReward,
    PolicyConfig,
    PTrueTuned,
    WarmupCosine,
)
from lovec.types import LossOutput, LovecError, Record, Sentence


class Given(Rows):
    """Serves the given training records, and validation records of its own."""

    def __init__(self, rows: list[Record], val: list[Record] | None = None) -> None:
        super().__init__()
        self.rows, self.val = rows, val

    def load(self, split: str) -> list[Record]:
        return self.rows if split == "train" else self.val or super().load(split)


class Untouched(SFT):
    """Fails the test if a step begins."""

    def training_step(self, rows: Any, batch_idx: int) -> None:
        raise AssertionError("a step has begun")


def long(row: Record) -> Record:
    return replace(row, question="q" * 400)


def with_text(row: Record, text: str) -> Record:
    return replace(row, sentences=(replace(row.sentences[0], text=text),), rejected=(row.rejected or (0,))[:1])


SHORT: dict[str, Any] = {"lora_r": 4, "max_length": 190}


def test_records_that_do_not_fit_are_left_out_where_the_data_say_so(model: str, tmp_path: Path) -> None:
    rows = records(12)
    rows[3], rows[11] = long(rows[3]), long(rows[11])
    policy = PolicyConfig(model=model, **SHORT)
    weights = []
    for kept, unfit in ((rows, "leave_out"), ([row for row in rows if row.id not in ("r3", "r11")], "refuse")):
        data = Given(kept)
        data.unfit = unfit
        objective = module(SFT, model, policy=policy)
        ours = trainer(tmp_path / unfit)
        torch.manual_seed(0)  # of the fresh adapter
        if unfit == "leave_out":
            with pytest.warns(
                UserWarning, match=r"2 of 12 training records .* \(r3, r11\).*; all of them are left out"
            ):
                ours.fit(objective, data)
            assert data.summary["train"]["cannot be learned from"] == 2
            saved = data.fingerprint()
        else:
            ours.fit(objective, data)
            assert data.fingerprint() == saved
        weights.append([weight.detach().clone() for weight in objective.policy.trainable()])
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))
    data = Given([long(row) for row in rows])
    data.unfit = "leave_out"
    with pytest.raises(LovecError, match=r"12 of 12 training records cannot be learned from"):
        trainer(tmp_path / "none").fit(module(Untouched, model, policy=policy), data)


@pytest.mark.parametrize("cls", [SFT, DPO, ORPO, ExpectedReward])
def test_records_that_do_not_fit_are_named_before_the_first_step(cls: type, model: str, tmp_path: Path) -> None:
    class Untouched(cls):  # type: ignore[misc]
        def training_step(self, rows: Any, batch_idx: int) -> None:
            raise AssertionError("a step has begun")

    rows = records(12)
    rows[3], rows[11] = long(rows[3]), long(rows[11])
    objective = module(Untouched, model, policy=PolicyConfig(model=model, **SHORT))
    with pytest.raises(LovecError) as error:
        trainer(tmp_path).fit(objective, Given(rows))
    assert str(error.value).startswith(
        "2 of 12 training records cannot be learned from (r3, r11); the first is r3: prompt and first sentence are "
        "longer than the context of 190 tokens; leave the row out, shorten the question, or raise policy.max_length"
    )


def test_rows_that_are_cut_are_counted_before_the_first_step(
    model: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [replace(row, question="q" * 30) for row in records(12)]
    objective = module(Untouched, model, policy=PolicyConfig(model=model, **SHORT))
    with pytest.raises(AssertionError, match="a step has begun"):
        trainer(tmp_path).fit(objective, Given(rows))
    assert caplog.text.count("their last sentences are cut") == 1


def test_questions_of_rollouts_are_checked_with_the_room_for_answers(
    model: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Untouched(GRPO):
        def training_step(self, rows: Any, batch_idx: int) -> None:
            raise AssertionError("a step has begun")

    def run(rows: list[Record]) -> None:
        objective = grpo(model, cls=Untouched, max_new_tokens=60, policy=PolicyConfig(model=model, **SHORT))
        trainer(tmp_path).fit(objective, Given(rows))

    rows = records(12)
    with pytest.raises(LovecError, match=r"^1 of 12 training records cannot be learned from \(r3\); the first is r3: "):
        run([*rows[:3], long(rows[3]), *rows[4:]])
    caplog.clear()
    with pytest.raises(AssertionError, match="a step has begun"):
        run([*rows[:3], replace(rows[3], question="q" * 100), *rows[4:]])
    assert "questions so far leave less room than max_new_tokens 60" in caplog.text and "r3" in caplog.text


def test_validation_records_without_room_are_counted(model: str, tmp_path: Path) -> None:
    val = [*records(3), replace(long(records(4)[3]), question="q" * 20000)]
    objective = module(Untouched, model)
    with (
        pytest.warns(UserWarning, match="1 validation record has a prompt that fills the model's context of .*: r3"),
        pytest.raises(AssertionError, match="a step has begun"),
    ):
        trainer(tmp_path).fit(objective, Given(records(12), val))


@pytest.mark.parametrize("cls", [SFT, DPO, ExpectedReward])
@pytest.mark.parametrize("text", ["The word <confidence> stands first.", "It ends </confidence> so."])
def test_tag_words_in_sentences_are_refused(cls: type, text: str, model: str, tmp_path: Path) -> None:
    rows = records(12)
    rows[5] = with_text(rows[5], text)
    with pytest.raises(
        LovecError, match=r"^1 of 12 .*r5: a sentence contains <confidence> or </confidence>, so its tag "
    ):
        trainer(tmp_path).fit(module(cls, model), Given(rows))


@pytest.mark.parametrize("cls", [SFT, DPO])
def test_texts_that_no_tokenizer_takes_are_refused(cls: type, model: str, tmp_path: Path) -> None:
    rows = records(12)
    rows[5], rows[6] = with_text(rows[5], "Half \ud800 a pair."), replace(rows[6], question="Who is \ud800?")
    with pytest.raises(LovecError, match=r"^2 of 12 .*\(r5, r6\); the first is r5: a text holds half a surrogate pair"):
        trainer(tmp_path).fit(module(cls, model), Given(rows))


def test_tag_words_in_questions_are_counted(model: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = records(12)
    rows[5] = replace(rows[5], question="What does <confidence> mean?")
    with pytest.raises(AssertionError, match="a step has begun"):
        trainer(tmp_path).fit(module(Untouched, model), Given(rows))
    assert (
        "1 training questions so far contain the tag words, which the model will read in its prompt: r5" in caplog.text
    )


@pytest.mark.parametrize("cls", [DPO, ORPO])
def test_pairs_that_reject_what_they_choose_are_counted_or_refused(
    cls: type, model: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def alike(row: Record) -> Record:
        return replace(row, rejected=tuple(round(10 * (s.factuality or 0.0)) for s in row.sentences))

    rows = records(12)
    rows[1], rows[2] = alike(rows[1]), alike(rows[2])
    fit(tmp_path, module(cls, model), Given(rows), max_steps=1)
    assert "2 pairs so far reject the very scores that they choose" in caplog.text and "r1, r2" in caplog.text
    with pytest.raises(LovecError, match="all 12 pairs reject the very scores that they choose"):
        fit(tmp_path, module(cls, model), Given([alike(row) for row in rows]))


def test_only_pairs_that_are_trained_on_can_reject_what_they_choose(
    model: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One that is left out does not count, and of a long one what is kept decides, not what was tried."""
    good, long = records(2)
    words = tuple(Sentence(f"Ada wrote note {i}.", 1.0) for i in range(20))
    long = replace(long, sentences=words, rejected=(10,) * 6 + (3,) * 14)
    hopeless = replace(good, id="hopeless", sentences=(Sentence("x" * 3000, 1.0),), rejected=(10,))
    objective, data = (
        module(DPO, model, policy=PolicyConfig(model=model, lora_r=4, max_length=500)),
        Given([good, hopeless]),
    )
    data.unfit = "leave_out"
    fit(tmp_path, objective, data, max_steps=1)
    assert "reject the very scores" not in caplog.text and objective.global_step == 1
    objective = module(DPO, model, policy=PolicyConfig(model=model, lora_r=4, max_length=470))
    fit(tmp_path, objective, Given([long]), max_steps=1)
    kept = len(objective.example(long).record.sentences)
    assert 6 < kept < 20 and "reject the very scores" not in caplog.text


def test_p_true_leaves_out_what_does_not_fit_before_the_first_step(
    model: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = records(12)
    rows[3] = replace(rows[3], sentences=(Sentence("x" * 1000, 0.5), Sentence("Ada wrote.", 1.0)), rejected=None)
    objective = module(PTrueTuned, model, policy=PolicyConfig(model=model, lora_r=4, max_length=500))
    trainer(tmp_path, max_steps=0).fit(objective, Given(rows))
    assert objective.question.failed.ids.keys() == {"r3"}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda row: with_text(row, "x" * 1000), "no sentence with a label fits the context of 500 "),
        (lambda row: row.with_factuality([None] * len(row.sentences)), "no sentence has a factuality, "),
    ],
)
def test_p_true_has_rows_without_a_question_refused_or_left_out(
    change: Any, why: str, model: str, tmp_path: Path
) -> None:
    rows = records(12)
    rows[3] = change(rows[3])
    data, policy = Given(rows), PolicyConfig(model=model, lora_r=4, max_length=500)
    with pytest.raises(LovecError, match=rf"^1 of 12 .*\(r3\); .* {why}"):
        trainer(tmp_path, max_steps=0).fit(module(PTrueTuned, model, policy=policy), data)
    data.unfit, data.batch_size = "leave_out", 1
    ours = trainer(tmp_path)
    with pytest.warns(UserWarning, match=r"1 of 12 training records .* \(r3\).*; all of them are left out"):
        ours.fit(module(PTrueTuned, model, policy=policy), data)
    assert ours.global_step == 11


# Which records are encoded to know whether they fit


def encoded(cls: type, rows: Any, folder: Path, **kwargs: Any) -> list[str]:
    """The ids of the training records that an objective encodes before the first step."""
    ids = []

    class Watched(cls):  # type: ignore[misc]
        def training_step(self, rows: Any, batch_idx: int) -> None:
            raise AssertionError("a step has begun")

    objective = kwargs.pop("build", module)(cls=Watched, **kwargs)
    check = objective.check_row
    objective.check_row = lambda row: (ids.append(row.id), check(row))
    with pytest.raises(AssertionError, match="a step has begun"):
        trainer(folder).fit(objective, Given(rows))
    return ids


@pytest.mark.parametrize("cls", [SFT, DPO, ORPO, ExpectedReward])
def test_only_records_that_may_not_fit_are_encoded(cls: type, model: str, tmp_path: Path) -> None:
    rows = records(12)
    rows[3] = replace(rows[3], question="q" * 300)  # fits, but not by the bound
    rows[5] = replace(rows[5], question="What does <confidence> mean?")
    policy = PolicyConfig(model=model, lora_r=4, max_length=525)
    assert encoded(cls, rows, tmp_path, model=model, policy=policy) == ["r3", "r5"]


def test_pairs_that_may_be_equal_are_encoded(model: str, tmp_path: Path) -> None:
    rows = records(12)
    rows[2] = replace(rows[2], rejected=tuple(round(10 * (s.factuality or 0.0)) for s in rows[2].sentences))
    assert encoded(DPO, rows, tmp_path, model=model) == ["r2"]


def test_questions_of_rollouts_are_encoded_where_they_may_leave_little_room(model: str, tmp_path: Path) -> None:
    rows = records(12)
    rows[7] = replace(rows[7], question="q" * 300)
    options: dict[str, Any] = {"max_new_tokens": 60, "policy": PolicyConfig(model=model, lora_r=4, max_length=430)}
    assert encoded(GRPO, rows, tmp_path, build=lambda cls, **kw: grpo(model, cls=cls, **kw), **options) == ["r7"]


def test_an_objective_that_encodes_in_its_own_way_has_all_records_checked(model: str, tmp_path: Path) -> None:
    class Longer(SFT):
        def encode(self, row: Record) -> Any:
            return super().encode(replace(row, question=row.question * 2))

    class Twice:
        def tagged(self, row: Record, scores: Any) -> Any:
            return super().tagged(replace(row, question=row.question * 2), scores)  # type: ignore[misc]

    class Mixed(Twice, DPO):
        pass

    rows = records(12)
    everything = [row.id for row in rows]
    assert encoded(Longer, rows, tmp_path, model=model) == everything
    assert encoded(Mixed, rows, tmp_path, model=model) == everything
    assert encoded(PTrueTuned, rows, tmp_path, model=model) == everything


@pytest.mark.parametrize("arch", ["llama", "gemma2", "qwen2"])
def test_no_record_has_more_tokens_than_its_bound(arch: str, tmp_path: Path) -> None:
    texts = [
        "Plain words.",
        "Größe naïve Ελλάς 東京 ﷺ ﬃ ½ İ",
        "e\u0301" * 30,
        "🦜 a\u200db",
        "<|eot_id|> <end_of_turn>",
        " \n x",
    ]
    encoder = Encoder(AutoTokenizer.from_pretrained(tiny(tmp_path, arch)))
    for question in texts:
        for count in range(1, len(texts)):
            row = Record("a", question, sentences=tuple(Sentence(text, 1.0) for text in texts[:count]))
            completion = encoder.completion(texts[:count], [10] * count)
            size = size_of(row)
            assert len(completion) <= encoder.most_completion_tokens(size.answer, size.sentences)
            assert len(encoder.prompt(question)) <= encoder.most_tokens(size.question)
            assert len(encoder.prompt(question)) + len(completion) <= encoder.most_tokens(*size[:3])


# Settings of optimisers and schedules


@pytest.mark.parametrize(
    ("optimizer", "words"),
    [
        (lambda p: torch.optim.AdamW(p, lr=-1.0), "refuses its settings: Invalid learning rate: -1.0"),
        (lambda p: torch.optim.AdamW(p, lr=float("nan")), "refuses its settings: Invalid learning rate: nan"),
        (lambda p: torch.optim.SGD(p, lr=float("inf")), "lr of the optimizer is inf, expected at least 0 and at most"),
        (lambda p: torch.optim.AdamW(p, betas=(0.9, 1.5)), "refuses its settings: Invalid beta"),
        (lambda p: torch.optim.AdamW(p, weight_decay=float("inf")), "weight_decay of the optimizer is inf"),
        (lambda p: torch.optim.SGD(p, lr=0.1, nesterov=True), "refuses its settings: Nesterov"),
    ],
)
def test_an_optimiser_with_a_wrong_setting_is_refused_before_a_model_is_loaded(
    optimizer: Any, words: str, tmp_path: Path
) -> None:
    objective = SFT(policy=PolicyConfig(model="there is none"), optimizer=optimizer)
    with pytest.raises(LovecError) as error:
        trainer(tmp_path).fit(objective, Rows())
    assert words in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("options", [{"warmup": 2.0}, {"warmup": -1.0}, {"floor": float("nan")}])
def test_a_schedule_with_a_wrong_setting_is_refused_before_a_model_is_loaded(options: Any, tmp_path: Path) -> None:
    objective = SFT(policy=PolicyConfig(model="there is none"), lr_scheduler=lambda o: WarmupCosine(o, **options))
    with pytest.raises(LovecError, match=rf"^{next(iter(options))} is "):
        trainer(tmp_path).fit(objective, Rows())


@pytest.mark.parametrize("cls", [torch.optim.lr_scheduler.ReduceLROnPlateau, cli.ReduceLROnPlateau])
def test_a_schedule_that_waits_for_a_metric_is_refused_before_a_model_is_loaded(cls: Any, tmp_path: Path) -> None:
    options = {"monitor": "val/brier"} if cls is cli.ReduceLROnPlateau else {}
    objective = SFT(policy=PolicyConfig(model="there is none"), lr_scheduler=lambda o: cls(o, **options))
    with pytest.raises(LovecError, match=r"^lr_scheduler is ReduceLROnPlateau, which waits for a metric"):
        trainer(tmp_path).fit(objective, Rows())


def test_a_schedule_that_is_over_before_the_run_says_so(model: str, tmp_path: Path) -> None:
    def schedule(optimizer: Any) -> Any:
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-3, total_steps=2)

    with pytest.raises(LovecError, match=r"^the lr_scheduler cannot go on: .* let it have as many steps as the run$"):
        fit(tmp_path, module(SFT, model, lr_scheduler=schedule))


# A loss or gradient that is not finite


def broken(cls: type, term: str, factor: float, where: str = "r4") -> type:
    """An objective whose term is not finite for one record."""

    class Broken(cls):  # type: ignore[misc]
        def loss(self, batch: Batch) -> LossOutput:
            out = super().loss(batch)
            values = out.terms[term].values
            rows = torch.tensor([[e.record.id == where] for e in batch.examples], device=values.device)
            rows = rows if values.ndim == 2 else rows[:, 0]
            spoilt = values * torch.where(rows, factor, 1.0)
            return LossOutput({**out.terms, term: replace(out.terms[term], values=spoilt)}, out.metrics)

    return Broken


@pytest.mark.parametrize("factor", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_names_step_term_and_records(factor: float, model: str, tmp_path: Path) -> None:
    """One record per micro-batch, so that only the faulty one is named."""
    objective = module(broken(DPO, "preference", factor), model, micro_batch_tokens=1, sft_weight=1.0)
    with pytest.raises(LovecError) as error:
        fit(tmp_path, objective)
    assert "the loss is " in str(error.value) and "because of the term 'preference' over the records r4;" in str(
        error.value
    )
    assert f"at step {objective.global_step}" in str(error.value)


def test_a_gradient_that_is_not_finite_names_the_records_of_its_micro_batch(model: str, tmp_path: Path) -> None:
    class Broken(SFT):
        def loss(self, batch: Batch) -> LossOutput:
            term = super().loss(batch).terms["nll"]
            if batch.examples[0].record.id != "r4":
                return LossOutput({"nll": term})
            root = (term.values - term.values.detach()).sqrt()  # 0, with an infinite slope
            return LossOutput({"nll": replace(term, values=root)})

    objective = module(Broken, model, micro_batch_tokens=1)
    with pytest.raises(
        LovecError, match=r"the gradient is nan at step \d, because of the term 'nll' over the records r4;"
    ):
        fit(tmp_path, objective)


def test_a_micro_batch_that_does_not_fit_says_what_to_change(model: str, tmp_path: Path) -> None:
    class Large(SFT):
        def loss(self, batch: Batch) -> LossOutput:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB")

    with pytest.raises(LovecError, match=r"up to 77 tokens does not fit .*; give a lower --model.micro_batch_tokens"):
        fit(tmp_path, module(Large, model, micro_batch_tokens=77))


def test_records_of_a_shared_micro_batch_are_all_named(model: str, tmp_path: Path) -> None:
    with pytest.raises(LovecError, match="over the records ") as error:
        fit(tmp_path, module(broken(SFT, "nll", float("nan")), model))
    named = str(error.value).partition("over the records ")[2].partition(";")[0].split(", ")
    assert "r4" in named and len(named) == 4


def test_answers_longer_than_the_limit_are_said_at_the_start(model: str, tmp_path: Path) -> None:
    rows = Rows().load("validation")
    cases = ((2000, 2000, 0), (40, 2000, len(rows)), (2000, 40, len(rows)), (40, None, len(rows)))
    for limit, rollouts, expected in cases:
        config = EvaluationConfig(max_new_tokens=limit, rows=8)
        objective = grpo(model, max_new_tokens=rollouts, evaluation=config)
        assert objective.max_new_tokens == (rollouts or limit)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            trainer(tmp_path, limit_train_batches=0).fit(objective, Rows())
        said = [str(w.message) for w in caught if "with their tags" in str(w.message)]
        start = f"{expected} of {len(rows)} validation answers have more than 40 tokens with their tags, and answers as"
        assert [line.startswith(start) for line in said] == [True] * bool(expected)


def test_only_answers_that_may_be_longer_than_the_limit_are_encoded(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = Encoder(AutoTokenizer.from_pretrained(model))
    rows = [replace(row, id=f"{row.id}+{n}", sentences=row.sentences * n) for n in range(4) for row in records(6)]
    rows[3] = replace(rows[3], sentences=(Sentence("It is </confidence>."),))  # has to be read
    texts = {row.id: [sentence.text for sentence in row.sentences] for row in rows}
    tokens = {name: len(encoder.completion(given, [0] * len(given))) for name, given in texts.items()}
    seen: list[str] = []
    encode = encoder._tokenize
    monkeypatch.setattr(encoder, "_tokenize", lambda text: (seen.append(text), encode(text))[1])
    for limit in (1, 40, 90, 200, 10_000):
        assert long_answers(rows, encoder, limit) == [name for name, count in tokens.items() if count > limit]
    may = encoder.most_completion_tokens(*size_of(rows[12])[1:3])  # that of an answer that is surely not longer
    seen.clear()
    assert long_answers(rows[12:13], encoder, may) == [] == seen
    assert long_answers([replace(rows[12], sentences=rows[12].sentences * 99)], encoder, may) and 0 < len(seen) < 50


def test_few_of_many_validation_records_are_read_before_the_first_step(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, val_path = tmp_path / "train.jsonl", tmp_path / "val.jsonl"
    write_records(path, records(8))
    write_records(val_path, [replace(row, id=f"v{row.id}") for row in records(900)])
    data, read = Demonstrations(str(path), str(val_path), batch_size=4), []
    get = StoredRecords.__getitem__

    def watched(self: Any, index: Any) -> Any:
        found = get(self, index)
        read.extend(row.id for row in (found if isinstance(index, slice) else [found]))
        return found

    monkeypatch.setattr(StoredRecords, "__getitem__", watched)
    objective = module(cls=Untouched, model=model, evaluation=EvaluationConfig(max_new_tokens=2000))
    with pytest.raises(AssertionError, match="a step has begun"):
        trainer(tmp_path, limit_val_batches=0).fit(objective, data)
    assert len([name for name in read if name[0] == "v"]) <= 256 < 900  # their lengths stand for those of all


def test_cut_rollouts_are_counted_and_have_no_end(model: str, tmp_path: Path) -> None:
    objective, examples = scripted(tmp_path, model, ["A b.", "A b|", "It c|"])
    assert [example.metrics["cut_off"] for example in examples] == [0.0, 1.0, 1.0]
    ended = [example.sequences[0].completion[-1] == objective.encoder.end_id for example in examples]
    assert ended == [True, False, False]
