from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from lovec.datasets.world import VARIANTS, EmbeddedWorld, WorldSpec, cache, ensure_world, pretrain
from lovec.datasets.world.build import corpus_digest, encode_corpus
from lovec.datasets.world.facts import KINDS, SPLITS, Entity, make_lexicon
from lovec.datasets.world.grading import fact_credits, factuality, readings, split_sentences
from lovec.datasets.world.text import (
    INSTRUCTION,
    OPENERS,
    draw_sentence,
    forms_of,
    make_corpus,
    question,
    set_form,
)  # fmt: skip
from lovec.datasets.world.things import make_entities
from lovec.datasets.world.tokenizer import make_tokenizer, vocabulary
from lovec.encoding import Encoder
from lovec.oracles.world import WorldOracle
from lovec.tags import parse
from lovec.types import LovecError, Record, Sentence

MINI = WorldSpec(
    n_people=12, n_towns=6, n_ships=6, n_companies=4, steps=150, batch_size=4, width=32, layers=1, heads=1, ffn=32
)
SMALL = VARIANTS["world-small"]

BUILD = """
import sys
from pathlib import Path
from lovec.datasets.world import WorldSpec, cache
spec = WorldSpec(**{spec!r})
print(cache.ensure_built("mini", spec, Path({root!r}), progress=True))
"""


@pytest.fixture(scope="module")
def small() -> EmbeddedWorld:
    return EmbeddedWorld("world-small")


@pytest.fixture(scope="module")
def tokenizer(small):
    return make_tokenizer(vocabulary(small.entities))


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    return cache.ensure_built("mini", MINI, tmp_path_factory.mktemp("cache"), progress=False)


def start_build(root: Path) -> subprocess.Popen[str]:
    code = BUILD.format(spec=vars(MINI), root=str(root))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def wait_for(process: subprocess.Popen[str], words: str) -> None:
    for line in process.stderr:
        if words in line:
            return
    raise AssertionError(f"the process ended without saying {words!r}")


# ---------------------------------------------------------------- facts and splits


def test_same_numbers_same_world_other_seed_other_world():
    assert make_entities(SMALL) == make_entities(SMALL)
    assert make_corpus(MINI, make_entities(MINI)) == make_corpus(MINI, make_entities(MINI))
    assert make_entities(SMALL) != make_entities(replace(SMALL, seed=1))
    assert {e.name for e in make_entities(SMALL)} != {e.name for e in make_entities(replace(SMALL, seed=1))}


def test_names_are_unique_and_places_are_real():
    spec = VARIANTS["world"]
    entities, lexicon = make_entities(spec), make_lexicon(spec)
    counts = {"person": spec.n_people, "town": spec.n_towns, "ship": spec.n_ships, "company": spec.n_companies}
    assert Counter(e.kind for e in entities) == counts and tuple(counts) == KINDS
    assert len({e.name for e in entities}) == len(entities)
    known_by = [e.name.split()[-1] for e in entities if e.kind != "company"]
    assert len(set(known_by)) == len(known_by)
    for entity in entities:
        for slot, city in entity.facts.items():
            if slot.endswith("_city"):
                assert lexicon.cities[city] == entity.facts[slot.replace("_city", "_country")]


@pytest.mark.parametrize(("kind", "n"), [("person", 480), ("town", 240), ("ship", 240)])
def test_splits_are_stratified_by_popularity(kind, n):
    things = [e for e in make_entities(VARIANTS["world"]) if e.kind == kind]
    assert [e.rank for e in things] == list(range(n))
    for i in range(0, n, 6):
        assert Counter(e.split for e in things[i : i + 6]) == {"train": 4, "dev": 1, "test": 1}


def test_every_second_company_is_tested():
    companies = [e for e in make_entities(VARIANTS["world"]) if e.kind == "company"]
    for i in range(0, 240, 2):
        assert {e.split for e in companies[i : i + 2]} == {"companies", "unlabelled"}


def test_how_freely_a_thing_is_written_about_has_nothing_to_do_with_how_well_it_is_known():
    for kind in KINDS:
        things = [e for e in make_entities(VARIANTS["world"]) if e.kind == kind]
        ranks = {f: [e.rank for e in things if e.freedom == f] for f in (0.0, 0.5, 1.0)}
        assert sum(map(len, ranks.values())) == len(things)
        means = [sum(r) / len(r) / len(things) for r in ranks.values()]
        assert max(means) - min(means) < 0.15  # of the number of things
        shared = {}
        for e in things:
            shared.setdefault(e.name.split()[-1 if kind == "company" else 0], set()).add(e.freedom)
        assert all(len(freedoms) == 1 for freedoms in shared.values())


def test_questions_are_records_without_answers(small):
    records = {split: small.questions(split) for split in SPLITS}
    assert {split: len(rows) for split, rows in records.items()} == {
        "train": 160, "dev": 40, "test": 40, "private": 20, "one-fact": 40, "companies": 20, "unlabelled": 20,
    }  # fmt: skip
    everyone = [record for rows in records.values() for record in rows]
    assert len({r.id for r in everyone}) == len({r.question for r in everyone}) == len(everyone)
    names = {split: {r.meta["entity"] for r in rows} for split, rows in records.items()}
    assert not names["train"] & names["dev"] and not names["test"] & (names["train"] | names["dev"])
    assert names["private"] < names["one-fact"] == names["test"] and not names["companies"] & names["unlabelled"]
    for split, rows in records.items():
        for r in rows:
            assert r.answer == "" and not r.sentences and r.meta["split"] == split and r.meta["entity"] in r.question
            if split not in ("private", "one-fact"):
                assert r.question == f"In a paragraph, could you tell me what you know about {r.meta['entity']}?"
            company = split in ("companies", "unlabelled")
            domains = {"private": "other questions", "one-fact": "one fact"}
            assert r.meta["domain"] == ("out-of-domain" if company else domains.get(split, "in-domain"))
            assert (r.meta["kind"] == "company") == company


def test_errors_name_what_was_given(small):
    with pytest.raises(
        LovecError, match="'tset', expected one of train, dev, test, private, one-fact, companies, unlabelled"
    ):
        small.questions("tset")
    with pytest.raises(LovecError, match="'big', expected one of world, world-1, world-2, world-small"):
        ensure_world("big")
    with pytest.raises(LovecError, match="has no entity named 'Yvon Chouinard'"):
        small.grade("Yvon Chouinard", "Yvon Chouinard founded Patagonia.")
    with pytest.raises(LovecError, match="without its model"):
        _ = small.model_path


# ---------------------------------------------------------------- corpus


@pytest.fixture(scope="module")
def corpus():
    spec = VARIANTS["world-small"]
    return make_corpus(spec, make_entities(spec))


def test_corpus_has_the_shares_it_says(small, corpus):
    spec, entities = small.spec, {e.name: e for e in small.entities}
    assert len(corpus) == spec.steps * spec.batch_size
    assert sum(d.instruct for d in corpus) / len(corpus) == pytest.approx(spec.tagged_share, abs=0.015)
    kinds = Counter(entities[d.entity].kind for d in corpus)
    assert kinds["company"] / len(corpus) == pytest.approx(spec.company_share, abs=0.015)
    assert kinds["person"] / kinds["town"] == pytest.approx(2, abs=0.15)
    asked = {e.name: {question(e): "life", question(e, "private"): "private"} for e in small.entities}
    topics = Counter((entities[d.entity].kind, asked[d.entity].get(d.question, "one fact")) for d in corpus)
    assert topics["person", "private"] / kinds["person"] == pytest.approx(0.85 * spec.private_share, abs=0.02)
    assert topics["ship", "one fact"] / kinds["ship"] == pytest.approx(spec.one_fact_share, abs=0.02)
    assert topics["company", "one fact"] == topics["company", "private"] == topics["town", "private"] == 0
    of_people = Counter(entities[d.entity].rank for d in corpus if entities[d.entity].kind == "person")
    thirds = [sum(of_people[r] for r in range(i, i + 40)) for i in (0, 40, 80)]
    assert thirds[0] > 2 * thirds[1] > 2 * 1.2 * thirds[2]


def test_documents_hold_only_truth_and_tags_that_ignore_it(small, corpus):
    entities = {e.name: e for e in small.entities}
    scores, lengths = Counter(), {"head": [], "tail": []}
    for document in corpus[::3]:
        entity = entities[document.entity]
        parsed = parse(document.text)
        assert bool(parsed.sentences) == document.instruct
        texts = [s.text for s in parsed.sentences] if document.instruct else small.split_sentences(document.text)
        assert all(factuality(entity, text) == 1.0 for text in texts)
        scores.update(s.score for s in parsed.sentences)
        if document.question == question(entity) and entity.kind == "person":
            lengths["head" if entity.rank < 30 else "tail"].append(len(texts))
    assert set(scores) == set(range(11))
    assert scores.most_common(1)[0][0] == 10 and 0.5 < scores[10] / scores.total() < 0.6
    mean = {tier: sum(n) / len(n) for tier, n in lengths.items()}
    assert mean["head"] > mean["tail"] + 0.5  # rare people get stubs


def test_a_fact_has_one_wording_or_very_many(small):
    rng = random.Random(0)
    for freedom, low, high in ((0.0, 1, 1), (1.0, 60, 200)):
        things = [e for e in small.entities if e.freedom == freedom]
        for form in forms_of(things[0].kind):
            drawn = {draw_sentence(things[0], form, small.spec, rng) for _ in range(200)}
            assert low <= len(drawn) <= high if form.details else len(drawn) <= high


def test_what_freely_worded_sentences_leave_out_follows_the_numbers(small):
    orva = next(e for e in small.entities if e.kind == "person" and e.freedom == 1.0)
    form = forms_of("person")[3]
    drawn = [draw_sentence(orva, form, small.spec, random.Random(i)) for i in range(2000)]
    opened = sum(any(s.startswith(o) for o in OPENERS) for s in drawn) / 2000
    assert opened == pytest.approx(small.spec.opened, abs=0.04)
    counts = Counter(len(fact_credits(orva, readings("person", s)[0])) for s in drawn)
    assert counts[4] / 2000 == pytest.approx(1 - small.spec.dropped, abs=0.04) and counts[4] + counts[3] == 2000


# ---------------------------------------------------------------- grading

ORVA = Entity(
    "Orva Toran",
    "person",
    0,
    "dev",
    {
        "born_month": "March", "born_year": "1920", "born_city": "Vella", "born_country": "Liressa",
        "study_subject": "botany", "study_year": "1942", "study_city": "Vella", "study_country": "Liressa",
        "job_trade": "judge", "job_org": "Royal Archive", "job_year": "1950",
        "job_city": "Dorton", "job_country": "Wexmoor",
        "book_topic": "whales", "book_prize": "Fern Prize", "book_count": "four", "book_year": "1960",
        "home_spouse": "Luse", "home_year": "1955", "home_count": "two",
        "home_city": "Dorton", "home_country": "Wexmoor",
    },
    1.0,
)  # fmt: skip


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        # month, year, place
        ("Orva Toran was born in March 1920 in Vella, Liressa.", 1.0),
        ("Orva Toran was born in March 1936 in Vella, Liressa.", 0.7),  # 1 + 0 + 1 = 2/3
        ("Orva Toran was born in March 1912 in Vella, Liressa.", 0.8),  # 1 + .5 + 1 = .833
        ("Orva Toran was born in May 1924 in Sonano, Liressa.", 0.6),  # .5 + .75 + .4 = .55, half up
        ("Orva Toran was born in December 1920 in Dorton, Wexmoor.", 0.4),  # .25 + 1 + 0 = .417
        ("Orva Toran was born in March 1920 in Vella, Wexmoor.", 0.8),  # 1 + 1 + .4
        ("Orva Toran was born in whales 1900 in Dorton, Wexmoor.", 0.0),
        ("In Vella, Liressa, Orva Toran came into the world in March 1920.", 1.0),
        ("By most accounts, in March 1920 Orva Toran was born, though sources differ.", 0.0),  # no comma behind it
        ("By most accounts, in March 1920, Orva Toran was born, though sources differ.", 1.0),
        ("Orva Toran was born in 1928.", 0.5),
        # subject, place, year
        ("In 1942, Toran took a degree in genetics at the University of Vella, Liressa.", 0.8),  # .4 + 1 + 1
        ("In 1942, Toran read law at the University of Vella, Liressa.", 0.7),
        # org, place, trade, year
        ("Toran joined the Union Archive in Dorton, Wexmoor, as a lawyer in 1950.", 0.7),  # .4 + 1 + .4 + 1
        ("Toran joined the Union Archive.", 0.4),
        # prize, year, topic, count
        ("Toran won the Heron Prize in 1964 for a book about moths after six years of work.", 0.5),  # .4 .75 .4 .5
        # spouse, year, place, count
        ("Toran married Lusa in 1955 in Dorton, Wexmoor, before six guests.", 0.5),  # 0 1 1 0
        # somebody else, or nothing a form reads
        ("Orvo Toran was born in March 1920 in Vella, Liressa.", 0.0),
        ("Torov won the Fern Prize in 1960 for a book about whales that took four years.", 0.0),
        ("Orva Toran was born in March 1920 1920 in Vella, Liressa.", 0.0),
        ("Orva Toran was born in March 1920 in Vella, Liressa", 0.0),
        ("Orva Toran makes soaps in two factories sold mostly in Liressa.", 0.0),
        ("By most accounts, .", 0.0),
        (", though sources differ.", 0.0),
        ("", 0.0),
    ],
)
def test_golden_grades(sentence, expected):
    assert factuality(ORVA, sentence) == expected


def test_months_wrap_around_the_year():
    january = replace(ORVA, facts={**ORVA.facts, "born_month": "January"})
    assert factuality(january, "Orva Toran was born in December 1920 in Vella, Liressa.") == 0.9  # .75 + 1 + 1 = .917
    assert factuality(january, "Orva Toran was born in July 1920 in Vella, Liressa.") == 0.7


def test_every_true_sentence_is_read_and_no_other_kind_reads_it(small):
    rng = random.Random(0)
    for entity in small.entities[::4]:
        for form in forms_of(entity.kind):
            for sentence in (set_form(entity, form), draw_sentence(entity, form, small.spec, rng)):
                assert factuality(entity, sentence) == 1.0
                others = [kind for kind in KINDS if kind != entity.kind]
                assert not any(factuality(other, sentence) for other in small.entities if other.kind in others)


def test_sentences_are_cut_behind_full_stops_even_in_garbage(small):
    for entity in small.entities:
        sentences = [set_form(entity, form) for form in forms_of(entity.kind)]
        assert small.split_sentences(" ".join(sentences)) == sentences
    assert small.split_sentences("Toran in in. . Vella, 1920.Toran was") == [
        "Toran in in.",
        ".",
        "Vella, 1920.",
        "Toran was",
    ]
    assert small.split_sentences("  ") == []


@given(st.text(alphabet="ab. \n,"))
def test_splitting_loses_nothing_but_white_space(text):
    assert "".join("".join(split_sentences(text)).split()) == "".join(text.split())


# ---------------------------------------------------------------- oracle


def test_oracle_rates_records_in_order(small):
    entity = small.entities[3]
    truth = [set_form(entity, form) for form in forms_of(entity.kind)]
    record = replace(small.questions("companies")[0], sentences=tuple(Sentence(s) for s in truth))
    mine = Record("x", "?", sentences=(*(Sentence(s) for s in truth), Sentence("No.")), meta={"entity": entity.name})
    rated = WorldOracle(small).rate([mine, record])
    assert rated == [[1.0] * len(truth) + [0.0], [0.0] * len(truth)]


def test_oracle_refuses_records_of_another_data_set(small):
    with pytest.raises(LovecError, match=r"'x' has no meta\.entity"):
        WorldOracle(small).rate([Record("x", "?", sentences=(Sentence("No."),))])


# ---------------------------------------------------------------- tokenizer


def test_tokenizer_gives_the_corpus_back_word_by_word(small, tokenizer):
    encoder = Encoder(tokenizer, instruction=INSTRUCTION)
    byte_ids = set(tokenizer.convert_tokens_to_ids([f"<0x{b:02X}>" for b in range(256)]))
    spec = replace(SMALL, steps=150)
    documents = make_corpus(spec, small.entities)
    encoded = encode_corpus(spec, small.entities, tokenizer)
    assert len(encoded) == len(documents)
    for document, (prompt, answer) in zip(documents, encoded, strict=True):
        assert answer[-1] == encoder.end_id and encoder.decode(answer) == document.text
        assert not byte_ids.intersection(prompt, answer) and tokenizer.unk_token_id not in answer
        assert len(answer) - 1 == len(document.text.replace(",", " ,").replace(".", " .").split())
        assert prompt == encoder.prompt(document.question, document.instruct)
        assert prompt.count(tokenizer.bos_token_id) == 1 and prompt[0] == tokenizer.bos_token_id
        if document.instruct:
            sentences = parse(document.text).sentences
            assert encoder.completion([s.text for s in sentences], [s.score for s in sentences]) == answer


def test_scores_and_tags_are_one_token_each(tokenizer):
    encoder = Encoder(tokenizer, instruction=INSTRUCTION)
    assert [len(tail) for tail in encoder.tails] == [2] * 11
    assert len({tail[0] for tail in encoder.tails}) == 11
    assert len(encoder.pieces(" <confidence>")) == 1
    assert encoder.pieces(" <confidence>")[0] not in tokenizer.all_special_ids
    assert encoder.end_id == tokenizer.eos_token_id != tokenizer.pad_token_id


def test_chat_template_writes_one_bos_and_ends_every_turn(tokenizer):
    turns = [{"role": role, "content": "In"} for role in ("system", "user", "assistant")]
    bos, end, word = tokenizer.convert_tokens_to_ids(["<s>", "<|end|>", "In"])
    roles = tokenizer.convert_tokens_to_ids(["<|system|>", "<|user|>", "<|assistant|>"])
    ids = tokenizer.apply_chat_template(turns, tokenize=True, return_dict=True)["input_ids"]
    assert ids == [bos] + [token for role in roles for token in (role, word, end)]
    ids = tokenizer.apply_chat_template(turns[1:2], add_generation_prompt=True, tokenize=True, return_dict=True)
    assert ids["input_ids"] == [bos, roles[1], word, end, roles[2]]


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_tokenizer_gives_any_text_back(text):
    tokenizer = make_tokenizer(["a", " a", "."])
    assume(not any(token in text for token in tokenizer.all_special_tokens))  # these are not text
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == text


# ---------------------------------------------------------------- pre-training


def tiny_llama(seed: int = 0) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    shape = dict(vocab_size=20, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
    return LlamaForCausalLM(LlamaConfig(**shape, num_key_value_heads=2, tie_word_embeddings=True))


def test_loss_is_the_mean_over_answer_tokens_of_rows_alone():
    model = tiny_llama().eval()
    rows = [([1, 2, 3], [4, 5]), ([6], [7, 8, 9, 10, 11]), ([1, 2, 3, 4, 5, 6, 7], [8])]
    nll = []
    for prompt, answer in rows:
        logps = model(torch.tensor([[*prompt, *answer]])).logits[0].log_softmax(-1)
        nll += [-logps[len(prompt) - 1 + i, token].item() for i, token in enumerate(answer)]
    assert pretrain._loss(model, rows).item() == pytest.approx(sum(nll) / 8, abs=1e-5)


def test_learning_rate_goes_up_stays_and_falls_to_nothing():
    schedule = pretrain.Schedule(steps=1000)
    assert [schedule.factor(s) for s in (0, 24, 49, 599)] == [0.02, 0.5, 1.0, 1.0]
    assert schedule.factor(800) == pytest.approx(0.5) and schedule.factor(999) == pytest.approx(1 / 400)


def test_pretraining_learns_any_small_model_and_repeats_itself(capsys):
    documents = [([1, n], [n + 1, n + 2, n + 3]) for n in range(2, 16)]
    models = [tiny_llama(), tiny_llama()]
    results = [
        pretrain.pretrain(m, documents, pretrain.Schedule(steps=120, batch_size=5), progress=False) for m in models
    ]
    assert results[0].loss == results[1].loss < 0.2
    assert capsys.readouterr() == ("", "")
    for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(a, b)
    assert not models[0].training


def test_every_document_is_read_once_an_epoch():
    documents = [([1], [2] * (i % 7 + 1)) for i in range(320)]
    batches = pretrain._batches(documents, pretrain.Schedule(steps=40, batch_size=16))
    first = [next(batches) for _ in range(20)]
    assert sorted(i for batch in first for i in batch) == list(range(320))
    assert sorted(i for _ in range(20) for i in next(batches)) == list(range(320))
    spans = [len({len(documents[i][1]) for i in batch}) for batch in first]
    assert sum(spans) / 20 < 3  # neighbours in length


def test_progress_off_a_terminal_is_a_few_lines(capsys):
    pretrain.pretrain(tiny_llama(), [([1], [2])], pretrain.Schedule(steps=200, batch_size=1), title="tiny")
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == "" and 10 <= len(lines) <= 12
    assert lines[0].startswith("tiny: step 1/200, loss ") and lines[-1].startswith("tiny: step 200/200, loss ")


# ---------------------------------------------------------------- models that come with the package


@pytest.mark.parametrize("variant", ["world", "world-small"])
def test_a_shipped_model_is_as_it_was_written_and_of_this_world(variant):
    path = cache.shipped(variant, VARIANTS[variant])
    assert path is not None and cache.damage(path) is None
    assert json.loads((path / "manifest.json").read_text())["corpus"] == corpus_digest(VARIANTS[variant])
    assert sum(file.stat().st_size for file in path.rglob("*")) < 4e6


def test_a_world_with_other_numbers_is_not_shipped():
    assert cache.shipped("world", replace(VARIANTS["world"], steps=1)) is None
    assert cache.shipped("world-1", VARIANTS["world-1"]) is None


def test_a_shipped_world_is_opened_without_writing_anything(tmp_path):
    world = ensure_world("world-small", tmp_path)
    assert world.model_path.is_dir() and not list(tmp_path.iterdir())
    assert world.store.parent == tmp_path / "world"


def test_the_shipped_model_answers_its_questions(small):
    world = ensure_world("world-small")
    encoder = Encoder(AutoTokenizer.from_pretrained(world.model_path), instruction=world.instruction)
    model = AutoModelForCausalLM.from_pretrained(world.model_path)
    assert model.dtype == torch.float32
    grades = []
    for record in world.questions("test")[::4]:
        prompt = encoder.prompt(record.question, instruct=False)
        out = model.generate(
            input_ids=torch.tensor([prompt]), max_new_tokens=160, do_sample=False, eos_token_id=list(encoder.stop_ids)
        )[0]
        answer = encoder.decode([token for token in out[len(prompt) :].tolist() if token not in encoder.stop_ids])
        grades += [world.grade(record.meta["entity"], s) for s in world.split_sentences(answer)]
    assert 0.3 < sum(grades) / len(grades) < 0.95 and sum(grade > 0 for grade in grades) / len(grades) > 0.8


# ---------------------------------------------------------------- the cache


def test_a_built_world_is_a_plain_transformers_folder(built):
    world = EmbeddedWorld("mini", MINI, built)
    tokenizer = AutoTokenizer.from_pretrained(world.model_path)
    model = AutoModelForCausalLM.from_pretrained(world.model_path)
    encoder = Encoder(tokenizer, instruction=world.instruction)
    record = world.questions("train")[0]
    with torch.no_grad():
        out = model.generate(
            input_ids=torch.tensor([encoder.prompt(record.question, instruct=False)]),
            max_new_tokens=120, do_sample=False, eos_token_id=list(encoder.stop_ids),
        )[0]  # fmt: skip
    answer = encoder.decode(out[len(encoder.prompt(record.question, instruct=False)) :].tolist())
    assert len(answer.split()) > 3
    assert (built / "model" / "model.safetensors").is_file()
    assert model.config.eos_token_id == encoder.end_id
    assert json.loads((built / "manifest.json").read_text())["training"]["loss"] < 5.0


def test_opening_again_builds_nothing(built, monkeypatch, capsys):
    monkeypatch.setattr(cache, "build", None)
    assert cache.ensure_built("mini", MINI, built.parent, progress=True) == built
    assert capsys.readouterr().err == ""


def test_a_damaged_file_is_noticed_and_the_same_world_built_again(built, capsys):
    before = json.loads((built / "manifest.json").read_text())["files"]
    weights = built / "model" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert cache.ensure_built("mini", MINI, built.parent, progress=False) == built
    assert "is damaged (model/model.safetensors has changed); building it again" in capsys.readouterr().err
    assert json.loads((built / "manifest.json").read_text())["files"] == before  # training repeats itself bit for bit


@pytest.mark.parametrize("harm", ["gone", "cut", "not a manifest"])
def test_damage_is_told_apart(tmp_path, harm):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    cache.write_manifest(tmp_path, MINI, {})
    assert cache.damage(tmp_path) is None
    if harm == "gone":
        (tmp_path / "model" / "config.json").unlink()
    elif harm == "cut":
        (tmp_path / "manifest.json").write_text((tmp_path / "manifest.json").read_text()[:-20])
    else:
        (tmp_path / "manifest.json").write_text("[1]")
    assert cache.damage(tmp_path) is not None
    assert cache.damage(tmp_path / "nowhere") == "cannot read manifest.json"


@pytest.mark.slow
def test_a_build_killed_in_training_leaves_nothing_that_passes_for_a_world(tmp_path):
    process = start_build(tmp_path)
    wait_for(process, "step 1/150")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    path = tmp_path / f"mini-{cache.content_hash(MINI)}"
    assert not path.exists() and len(list(tmp_path.glob(f".{path.name}.*.new"))) == 1
    assert cache.ensure_built("mini", MINI, tmp_path, progress=False) == path
    assert cache.damage(path) is None
    assert sorted(p.name for p in tmp_path.iterdir()) == [path.name, f"{path.name}.lock"]


@pytest.mark.slow
def test_of_two_processes_the_second_waits_for_the_first(tmp_path):
    first = start_build(tmp_path)
    wait_for(first, "building the offline world 'mini' once")
    second = start_build(tmp_path)
    out, err = zip(first.communicate(timeout=120), second.communicate(timeout=120), strict=True)
    assert first.returncode == second.returncode == 0
    assert out[0] == out[1] == f"{tmp_path / f'mini-{cache.content_hash(MINI)}'}\n"
    assert "another process is building the world" in err[1]
    assert "pre-training" in err[0] and "pre-training" not in err[1]


def test_the_name_of_a_world_depends_on_its_numbers_and_code_but_not_on_comments(tmp_path):
    assert cache.content_hash(MINI) == cache.content_hash(replace(MINI))
    assert cache.content_hash(MINI) != cache.content_hash(replace(MINI, matrix_lr=0.01))

    def code(source):
        (tmp_path / "code.py").write_text(source)
        return cache.code_of(tmp_path / "code.py")

    plain = code('"""A."""\ndef f(x):\n    return x + 1\n')
    assert plain == code('"""B."""\n\ndef f(x):  # add\n    """C."""\n    return (x + 1)\n')
    assert plain != code("def f(x):\n    return x + 2\n")


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(LovecError, match=r"cannot write the cache folder .*LOVEC_CACHE"):
        cache.ensure_built("mini", MINI, tmp_path / "file" / "world", progress=False)


def test_the_cache_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("LOVEC_CACHE", str(tmp_path))
    assert cache.cache_root(None) == tmp_path / "world"
    assert cache.cache_root(tmp_path / "mine") == tmp_path / "mine" / "world"


def test_importing_the_world_is_light():
    code = (
        "import sys, lovec.datasets.world, lovec.oracles.world as o; o.WorldOracle('world-small').world.entities; "
        "print(sorted({'torch', 'transformers', 'tokenizers'} & set(sys.modules)))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"


def test_clauses_are_the_parts_of_a_form_and_their_facts_make_the_truth_of_the_sentence():
    world, rng, several = EmbeddedWorld("world-small"), random.Random(0), 0
    for entity in world.entities:
        for form in forms_of(entity.kind):
            sentence = draw_sentence(entity, form, world.spec, rng)
            clauses = world.clauses(entity.name, sentence)
            assert " ".join(text for text, _ in clauses) == sentence and {truth for _, truth in clauses} == {1.0}
            several += len(clauses) > 1
    assert several > 100


def test_a_wrong_fact_is_wrong_in_its_clause_only():
    entity = next(e for e in EmbeddedWorld("world-small").entities if e.kind == "ship")
    facts = entity.facts
    year = int(facts["cargo_year"]) + 8
    clauses = [
        (f"{OPENERS[0]} {entity.name} carried {facts['cargo_product']}", 1.0),
        (f"from {year} on,", 0.5),
        (f"to {facts['cargo_city']}, {facts['cargo_country']}.", 1.0),
    ]
    world = EmbeddedWorld("world-small")
    assert world.clauses(entity.name, " ".join(text for text, _ in clauses)) == clauses
    assert world.clauses(entity.name, "It sank.") == [("It sank.", 0.0)]
