"""Records that stay in their file are those of the file, whoever reads them, and changes of the file are noticed."""

from __future__ import annotations

import gc
import gzip
import multiprocessing
import os
import pickle
import tracemalloc
import unicodedata
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lovec.datasets.jsonl import read_records, write_records
from lovec.datasets.stored import RecordSize, StoredRecords, domains_of, read_stored, size_of, sizes_of
from lovec.tags import DEFAULT_TAGS, TagFormat
from lovec.types import LovecError, Record, Sentence


def record(number: int, words: int = 20) -> Record:
    sentences = tuple(Sentence(f"Größe {number} " + "word " * words + f"{i}.", 0.1 * i) for i in range(4))
    return Record(f"r{number}", f"Who is {number}?", answer="".join(s.text for s in sentences), sentences=sentences)


@pytest.fixture
def path(tmp_path: Path) -> str:
    file = tmp_path / "r.jsonl"
    write_records(file, map(record, range(30)))
    return str(file)


def stored(path: str, change: Any = lambda record: record) -> Any:
    return read_stored(path, {"train": change})["train"]


def test_records_are_those_of_the_file(path: str) -> None:
    records, whole = stored(path), list(read_records(path))
    assert isinstance(records, StoredRecords) and len(records) == 30
    assert list(records) == whole and [records[i] for i in (3, -1)] == [whole[3], whole[-1]]
    assert records[5:25:7] == whole[5:25:7]
    assert list(records.selected([7, 2])) == [whole[7], whole[2]]
    assert list(records.sizes()) == list(map(size_of, whole))
    with pytest.raises(IndexError):
        records[30]


def test_blank_lines_a_mark_and_missing_ids_are_as_when_read_in_one_go(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"question": "A?"}\n\n  \n{"question": "B?", "id": 7}\r\n{"question": "C?"}')
    assert [r.id for r in stored(str(path))] == ["line-1", "7", "line-5"] == [r.id for r in read_records(path)]


def test_domains_are_known_without_reading(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def grouped(record: Record) -> Record:
        return replace(record, meta={"domain": f"d{int(record.id[1:]) % 3}"}) if record.id != "r0" else record

    records = stored(path, grouped)
    expected, some = [record.domain for record in records], records.selected([5, 0, 1])
    assert expected[:4] == ["in-domain", "d1", "d2", "d0"] == list(domains_of(list(records)[:4]))
    monkeypatch.setattr(StoredRecords, "__getitem__", None)
    assert list(domains_of(records)) == expected and list(domains_of(some)) == ["d2", "in-domain", "d1"]


def test_several_splits_come_of_one_reading(path: str) -> None:
    def odd(record: Record) -> Record | None:
        return replace(record, question="odd") if int(record.id[1:]) % 2 else None

    seen: list[str] = []
    found = read_stored(path, {"odd": odd, "all": lambda r: r}, on_record=lambda r: seen.append(r.id))
    assert [r.id for r in found["odd"]] == [f"r{i}" for i in range(1, 30, 2)]
    assert {r.question for r in found["odd"]} == {"odd"} and list(found["all"]) == list(read_records(path))
    assert seen == [f"r{i}" for i in range(30)]


@pytest.mark.parametrize("name", ["r.jsonl.gz", "r.csv", "r.json"])
def test_other_files_are_held_in_memory(name: str, path: str, tmp_path: Path) -> None:
    other, text = tmp_path / name, Path(path).read_bytes()
    if name.endswith(".gz"):
        other.write_bytes(gzip.compress(text))
    elif name.endswith(".json"):
        other.write_bytes(b"[" + b",".join(text.splitlines()) + b"]")
    else:
        other.write_text("id,question\n" + "".join(f"r{i},Who is {i}?\n" for i in range(30)))
    records = stored(str(other))
    assert isinstance(records, list) and len(records) == 30
    if not name.endswith(".csv"):
        assert records == list(read_records(path))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"question": 3}', "r.jsonl:31: 'question' is 3, expected a text"),
        ('{"id": "r4", "question": "Q?"}', "r.jsonl:31: id 'r4' is already that of line 5"),
        ('{"question": "Q?"', "r.jsonl:31: not valid JSON"),
    ],
)
def test_a_broken_line_is_named(line: str, words: str, path: str) -> None:
    with open(path, "a") as file:
        file.write(line + "\n")
    with pytest.raises(LovecError) as error:
        stored(path)
    assert words in str(error.value)


def test_a_file_that_is_written_to_is_refused_and_one_that_is_replaced_is_not(path: str) -> None:
    records, whole = stored(path), list(read_records(path))
    write_records(path, [record(99)])  # another file under the same name
    assert list(records) == whole
    again = stored(path)
    with open(path, "ab") as file:
        file.write(b"\n")
    with pytest.raises(LovecError, match=r"^[^\n]*r\.jsonl was written to while it is being read; start again[^\n]*$"):
        again[0]
    same_size = stored(path)
    with open(path, "r+b") as file:
        file.write(b" ")
    os.utime(path, ns=(0, 0))
    with pytest.raises(LovecError, match="was written to"):
        same_size[0]


def _read_all(records: StoredRecords, out: Any) -> None:
    out.put([r.id for _ in range(20) for r in records])


def test_processes_read_at_the_same_time(path: str) -> None:
    records = stored(path)
    context = multiprocessing.get_context("fork")
    queues = [context.Queue() for _ in range(3)]
    processes = [context.Process(target=_read_all, args=(records, queue)) for queue in queues]
    for process in processes:
        process.start()
    expected = [r.id for _ in range(20) for r in records]
    assert [queue.get(timeout=60) for queue in queues] == [expected] * 3
    for process in processes:
        process.join()


def test_a_pickled_copy_reads_the_same_file(path: str) -> None:
    records = StoredRecords(stored(path)._file, replace, DEFAULT_TAGS, stored(path)._entries, {"in-domain": 0})
    copy = pickle.loads(pickle.dumps(records))
    assert list(copy) == list(records)
    text = pickle.dumps(records)
    write_records(path, [record(99)])
    with pytest.raises(LovecError, match="was written to"):  # what has its name by now is another file
        pickle.loads(text)[0]


def test_memory_is_bounded(path: str, tmp_path: Path) -> None:
    assert list(stored(path))  # what is imported and made only once is not counted
    large = tmp_path / "large.jsonl"
    write_records(large, (record(i, words=300) for i in range(1000)))
    tracemalloc.start()
    records = stored(str(large))
    for _ in records:
        pass
    gc.collect()  # which also gives back the freed tuples that Python keeps for later ones
    present, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert large.stat().st_size > 10e6
    assert present < 1000 * 60 and peak < 1000 * 400  # bytes; the ids are held while the file is read


def test_sizes_say_what_decides() -> None:
    plain = record(3)
    # "ö" is one byte longer in two characters
    assert size_of(plain) == RecordSize(
        9, sum(len(s.text.encode()) for s in plain.sentences) + 4, 4, True, False, False
    )
    assert size_of(replace(plain, rejected=(1, 2, 3, 4))).pair
    assert not size_of(replace(plain, rejected=(0, 1, 2, 3))).pair  # the true scores
    assert not size_of(Record("a", "Q?")).labelled
    assert not size_of(replace(plain, sentences=(*plain.sentences, Sentence("Unlabelled.")))).labelled
    assert size_of(replace(plain, question="What is <confidence>?")).must_be_read
    assert size_of(replace(plain, sentences=(Sentence("A </confidence>.", 1.0),))).must_be_read
    assert size_of(replace(plain, question="\ud800")).must_be_read


def test_sizes_for_other_tag_words_are_read_anew(path: str) -> None:
    write_records(path, [replace(record(0), question="What does <sure> mean?")])
    records, other = stored(path), TagFormat("<sure>", "</sure>")
    assert [size.must_be_read for size in sizes_of(records, DEFAULT_TAGS)] == [False]
    assert [size.must_be_read for size in sizes_of(records, other)] == [True]


@given(st.text(max_size=40))
def test_bytes_are_those_of_the_longest_normal_form(text: str) -> None:
    size = size_of(Record("a", text))
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        assert size.must_be_read or len(unicodedata.normalize(form, text).encode()) <= size.question  # type: ignore[arg-type]
