"""Evidence: found by title, with suggestions for missing titles, and cut to a budget with marks at every cut."""

from __future__ import annotations

import json
import re
import sqlite3

import pytest

from lovec.datasets.evidence import SEPARATOR, EvidenceFile, Wikipedia, _most_similar, open_evidence, with_evidence
from lovec.datasets.layouts import read_any
from lovec.encoding import QUESTION
from lovec.text.cutting import GAP, Cutter, bm25, cut
from lovec.types import LovecError, Record, Sentence

TITLES = [
    "Ada Lovelace", "Kang Ji-hwan", "Kalki Koechlin", "Miguel Díaz (baseball)", "Sharad Kumar (athlete)", "Stockholm",
    "William Waldegrave, Baron Waldegrave of North Hill", "John Smith", "James Taylor", "Focus...",
]  # fmt: skip


@pytest.fixture
def database(tmp_path):
    """FActScore's layout."""
    path = tmp_path / "enwiki #1?.db"  # a name that is not a plain URI
    with sqlite3.connect(path) as file:
        file.execute("CREATE TABLE documents (title PRIMARY KEY, text);")
        for title in TITLES:
            text = f"<s>{title} is a page.</s>{SEPARATOR} More about it.{SEPARATOR}  "
            file.execute("INSERT INTO documents VALUES (?, ?)", (title, text))
    return path


def question(name, **meta):
    return Record(name, "Who?", meta=meta)


# ---------------------------------------------------------------- sources


def test_pages_of_wikipedia(database):
    pages = open_evidence(database)
    assert isinstance(pages, Wikipedia)
    assert pages.find("Ada Lovelace") == ("Ada Lovelace is a page.", "More about it.")
    for same in ("Ada_Lovelace", "ada Lovelace", " Ada  Lovelace", "Miguel Di\u0301az (baseball)"):
        assert pages.find(same), same
    assert pages.find("ADA LOVELACE") == pages.find("") == ()


@pytest.mark.parametrize(
    ("title", "meant"),
    [
        ("Kang Ji-Hwan", "Kang Ji-hwan"),
        ("Kalki Kochlin", "Kalki Koechlin"),
        ("Miguel Diaz (baseball)", "Miguel Díaz (baseball)"),
        ("Sharad Kumar", "Sharad Kumar (athlete)"),
        ("William Waldegrave", "William Waldegrave, Baron Waldegrave of North Hill"),
        ("Sir James Taylor", "James Taylor"),
        ("James Taylor (musician)", "James Taylor"),
        ("Focus", "Focus..."),
    ],
)
def test_nearest_titles(database, tmp_path, title, meant):
    assert Wikipedia(database).nearest(title)[0] == meant
    path = tmp_path / "pages.jsonl"
    path.write_text("".join(json.dumps({"title": t, "text": "x"}) + "\n" for t in TITLES))
    assert EvidenceFile(path).nearest(title)[0] == meant


def test_no_title_is_similar_to_nothing(database):
    assert Wikipedia(database).nearest("Zzz") == Wikipedia(database).nearest("") == []


def test_nearest_titles_of_a_file_are_found_among_many(tmp_path, monkeypatch):
    path = tmp_path / "pages.jsonl"
    names = (f"{first}{number:05d}" for number in range(5_000) for first in ("page ", "Title "))
    path.write_text("".join(json.dumps({"title": name, "text": "x"}) + "\n" for name in names))
    pages, compared = EvidenceFile(path), []

    def noted(title, candidates):
        compared.append(len(candidates))
        return _most_similar(title, candidates)

    monkeypatch.setattr("lovec.datasets.evidence._most_similar", noted)
    for number in (0, 1234, 4999):
        assert f"page {number:05d}" in pages.nearest(f"Page {number:05d}x")
    assert pages.nearest("") == []
    assert max(compared) <= 4 * 2 * 200  # spellings, sides, neighbours: not all 10,000


def test_nearest_titles_use_the_index_alone(database):
    """On millions of titles a scan would take seconds for every missing one."""
    with sqlite3.connect(database) as file:
        plans = [
            row[3]
            for sign, order in ((">=", "ASC"), ("<", "DESC"))
            for row in file.execute(
                f"EXPLAIN QUERY PLAN SELECT title FROM documents WHERE title {sign} ? ORDER BY title {order} LIMIT 9",
                ("a",),
            )
        ]
    assert len(plans) == 2 and all("SEARCH documents USING COVERING INDEX" in plan for plan in plans)


def test_a_page_without_a_text_is_no_page(database, caplog):
    with sqlite3.connect(database) as file:
        file.execute("UPDATE documents SET text = NULL WHERE title = 'Stockholm'")
    assert Wikipedia(database).find("Stockholm") == ()
    (record,) = with_evidence([question("a", entity="Stockholm")], open_evidence(database))
    assert record.evidence == () and "there is no page 'Stockholm'" in caplog.text


@pytest.mark.parametrize("damage", [bytes(4096), bytes(range(256)) * 16], ids=["zeros", "others"])
def test_a_damaged_database_is_one_line(database, damage):
    with sqlite3.connect(database) as file:
        ((page,),) = file.execute("SELECT rootpage FROM sqlite_master WHERE type = 'index'")
        assert file.execute("PRAGMA page_size").fetchone() == (len(damage),)
    with open(database, "r+b") as file:
        file.seek((page - 1) * len(damage))
        file.write(damage)
    pages = open_evidence(database)
    for read in (pages.find, pages.nearest):
        with pytest.raises(LovecError, match=r"^cannot read .*\.db as Wikipedia \(database disk image is malformed\)"):
            read("Ada Lovelace")


def test_texts_of_a_file(tmp_path):
    path = tmp_path / "pages.jsonl"
    lines = [
        {"title": "Ada Lovelace", "text": "One."},
        {"id": "bath", "text": ["Bath was founded about 60.", " "]},
        {"title": "Ada_Lovelace", "id": "ada", "text": "Two: ü."},
    ]
    path.write_text("\ufeff" + "\n\n".join(json.dumps(line, ensure_ascii=False) for line in lines), "utf-8")
    pages = open_evidence(path)
    assert isinstance(pages, EvidenceFile)
    assert pages.find("Ada Lovelace") == ("One.", "Two: ü.")
    assert pages.find("ada") == ("Two: ü.",)
    assert pages.find("bath") == ("Bath was founded about 60.",)
    assert pages.find("Bath") == ()


@pytest.mark.parametrize("line", ['{"text": "x"}', '{"title": "A"}', '{"title": "A", "text": [1]}'])
def test_other_lines_are_named(tmp_path, line):
    path = tmp_path / "pages.jsonl"
    path.write_text('{"title": "A", "text": "x"}\n' + line + "\n")
    with pytest.raises(LovecError, match=r"pages\.jsonl:2: not a line of evidence; expected title"):
        open_evidence(path)


def test_other_files_are_named(tmp_path):
    with pytest.raises(LovecError, match=r"cannot read nowhere\.db \(No such file.*sqlite file or JSONL"):
        open_evidence("nowhere.db")
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as file:
        file.execute("CREATE TABLE pages (title, text);")
    with pytest.raises(LovecError, match=r"other\.db as Wikipedia \(no such table: documents\); expected FActScore's"):
        open_evidence(path)


def test_records_get_their_pages_and_missing_ones_are_named(database, caplog):
    records = [
        question("a", entity="Ada Lovelace"),
        question("b", entity="Stockholm syndrome", title="Stockholm"),
        Record("c", "Who?", evidence=("My own.",), meta={"entity": "Nobody"}),
        question("d", entity="Kalki Kochlin"),
        question("e"),
    ]
    stream = with_evidence(iter(records), open_evidence(database))
    first = next(stream)  # one by one: nothing waits for the last
    assert first.evidence == ("Ada Lovelace is a page.", "More about it.") and not caplog.records
    rest = list(stream)
    assert [r.id for r in rest] == ["b", "c", "d", "e"]
    assert [len(r.evidence) for r in rest] == [2, 1, 0, 0]
    assert [r.message for r in caplog.records] == [
        "record d gets no evidence: there is no page 'Kalki Kochlin'; nearest: 'Kalki Koechlin'",
        "record e gets no evidence: it has neither meta.title nor meta.entity",
        "2 of 4 records have no evidence; where a nearest title is the right one, put it into meta.title",
    ]


@pytest.mark.parametrize(
    "row",
    [
        {"input": "Question: Tell me a bio of Miguel Díaz (baseball).", "output": "He plays.", "cat": ["rare", "x"],
         "topic": "Miguel Díaz (baseball)", "annotations": [{"text": "He plays.", "human-atomic-facts": None}]},
        {"prompt": QUESTION.format(entity="Miguel Díaz (baseball)"), "model_output": "He plays.",
         "rated_output_openai": "He plays. <confidence> 9 </confidence>", "ratings_openai": [9]},
    ],
)  # fmt: skip
def test_the_name_in_a_known_question_is_a_title(database, tmp_path, row):
    path = tmp_path / "answers.jsonl"
    path.write_text(json.dumps(row) + "\n", "utf-8")
    (record,) = with_evidence(read_any(path), open_evidence(database))
    assert record.evidence == ("Miguel Díaz (baseball) is a page.", "More about it.")


def test_evidence_may_be_found_by_id(tmp_path, caplog):
    path = tmp_path / "pages.jsonl"
    path.write_text('{"id": "bath", "text": "Bath was founded about 60."}\n')
    (record,) = with_evidence([question("bath")], open_evidence(path))
    assert record.evidence == ("Bath was founded about 60.",) and not caplog.records


# ---------------------------------------------------------------- BM25


def test_bm25_equals_a_library():
    """Scores of bm25s 0.3.16, method "lucene", k1 1.5, b 0.75."""
    passages = ["The cat sat on the mat.", "A dog sat.", "Cats and dogs, dogs and cats"]
    dog, cats = bm25(passages, ["the dog sat", "cats cats"])
    assert dog == pytest.approx([0.699098, 0.707723, 0.0], abs=1e-6)
    assert cats == pytest.approx([0.0, 0.0, 1.053239], abs=1e-6)
    assert bm25(["", "!"], ["cat", ""]) == [[0.0, 0.0], [0.0, 0.0]]


# ---------------------------------------------------------------- cutting


def words(text):
    return len(text.split())


def page(number, fact=""):
    """Three hundred words of a page, with a fact in the middle."""
    filler = [f"p{number}w{i}" for i in range(300)]
    return " ".join([*filler[:150], fact, *filler[150:]]).replace("  ", " ")


PAGES = (page(0), "", page(1, "Ada wrote the first program."), page(2, "Bath was founded about 60."), page(3))
CLAIMS = ["Ada wrote a program in 1843.", "Bath was founded by Romans."]


@pytest.mark.parametrize("how", ["bm25", "head"])
def test_evidence_within_the_budget_is_kept_whole(how):
    whole = "\n\n".join(text for text in PAGES if text)
    assert cut(PAGES, CLAIMS, words(whole), how, words) == whole
    assert cut((), CLAIMS, 5, how, words) == cut((" ",), CLAIMS, 5, how, words) == ""
    assert cut(("Ada.\r\n\r\nBath.\r\n",), CLAIMS, 5, how, words) == "Ada.\n\nBath."


def test_head_is_the_beginning():
    text = cut(PAGES, CLAIMS, 350, "head", words)
    assert text.endswith(f"\n\n{GAP}") and text.count(GAP) == 1
    whole = "\n\n".join(text for text in PAGES if text)
    assert whole.startswith(text.removesuffix(f"\n\n{GAP}"))
    assert 240 < words(text) <= 350


def test_bm25_finds_a_passage_for_every_sentence():
    text = cut(PAGES, CLAIMS, 250, "bm25", words)
    assert "Ada wrote the first program." in text and "Bath was founded about 60." in text
    assert text.index("Ada") < text.index("Bath")  # in their order in the evidence
    assert cut(PAGES, CLAIMS[::-1], 250, "bm25", words) == text
    assert text.startswith(GAP) and text.endswith(GAP) and text.count(GAP) == 3
    assert "Ada" not in cut(PAGES, CLAIMS, 250, "head", words)
    assert cut(PAGES, [], 250, "bm25", words) == cut(PAGES, [], 250, "head", words)


@pytest.mark.parametrize("how", ["bm25", "head"])
@pytest.mark.parametrize("count", [words, len, lambda text: int(words(text) ** 1.3)])  # the last: more than its parts
def test_budgets_are_kept_and_used(how, count):
    whole = count("\n\n".join(filter(None, PAGES)))
    for budget in (60, 120, 300, 700, whole - 1):
        text = cut(PAGES, CLAIMS, budget, how, count)
        assert count(text) <= budget and GAP in text
        if budget >= 700 and count is words:
            assert count(text) > budget - 130  # less than a passage is left over
        kept = re.sub(r"\s+", " ", " ".join(PAGES))
        assert all(re.sub(r"\s+", " ", part.strip()) in kept for part in text.split(GAP) if part.strip())


def test_a_small_budget_keeps_a_few_words():
    assert cut(PAGES, CLAIMS, 4, "head", words) == f"p0w0 p0w1 p0w2 {GAP}"
    assert cut(PAGES, CLAIMS, 4, "bm25", words).startswith(f"{GAP}\n\np1w")
    with pytest.raises(LovecError, match="budget of 1 tokens is too small for one word"):
        cut(PAGES, CLAIMS, 1, "head", words)


def test_text_without_spaces_is_cut_too():
    text = cut(("字" * 5000,), ["字"], 500, "bm25", len)
    assert 0 < len(text) <= 500 and text.endswith(GAP)


def test_passages_end_with_lines_and_neighbours_stay_as_they_stood():
    lines = "\n".join(" ".join(f"l{n}w{i}" for i in range(60)) for n in range(5))
    text = cut((lines,), ["l1w3 l2w3"], 130, "bm25", words)
    assert text == f"{GAP}\n\n" + "\n".join(lines.split("\n")[1:3]) + f"\n\n{GAP}"


def test_settings_are_checked():
    with pytest.raises(LovecError, match="the way to cut evidence is 'tail', expected one of bm25, head"):
        cut(PAGES, CLAIMS, 10, "tail", words)
    with pytest.raises(LovecError, match="cut evidence is 'tail'"):
        Cutter(10, "tail", words)
    with pytest.raises(LovecError, match="evidence_tokens is 0"):
        Cutter(0, "head", words)


def test_a_cutter_warns_whose_evidence_it_cut(caplog):
    cutter = Cutter(250, "bm25", words)
    sentences = tuple(map(Sentence, CLAIMS))
    for i in range(5):
        record = Record(f"r{i}", "Who?", PAGES, sentences=sentences)
        assert cutter(record) == cutter(record) == cut(PAGES, CLAIMS, 250, "bm25", words)
    assert cutter(Record("short", "Who?", ("A page.",))) == "A page."
    assert cutter(Record("bare", "Who?")) == ""
    assert cutter(Record("other", "Who?")) == ""
    cutter.warn()
    assert cutter(Record("late", "Who?")) == ""
    cutter.warn()  # it is said once
    assert list(cutter.cut) == ["r0", "r1", "r2", "r3", "r4"] and list(cutter.bare) == ["bare", "other", "late"]
    assert [r.message for r in caplog.records] == [
        "1 records have more than 250 tokens of evidence, which is cut by bm25: r0",
        "2 records have more than 250 tokens of evidence, which is cut by bm25: r1",
        "4 records have more than 250 tokens of evidence, which is cut by bm25: r2, r3",
        "2 records have no evidence: bare, other",
    ]
