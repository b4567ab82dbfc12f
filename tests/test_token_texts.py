"""How many tokens hold how much of a text: the same as by decoding all of them, for a share of the work."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from sentencepieces import sentencepiece
from tinyrun import tiny
from tokenizers import decoders
from transformers import AutoTokenizer

from lovec.datasets.world.tokenizer import make_tokenizer
from lovec.encoding import Encoder
from lovec.modules.rollout import RolloutModule
from lovec.taggers.freeform import AnswerReader, GrowingAnswer, sentence_spans
from lovec.tags import parse
from lovec.types import Completion, Sentence, TokenScores

PIECES = ["Ada", " wrote", " ", "  ", "\n", "é", "日本", "😀", "👩‍👩‍👧", "\ufffd", " <confidence> 9 </confidence>", "."]


def without_first_space() -> Any:
    """A tokenizer in the manner of Llama 2, whose texts lose the space that they begin with."""
    made = sentencepiece()
    steps = decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)
    made.backend_tokenizer.decoder = decoders.Sequence(list(steps))
    return made


@pytest.fixture(scope="module")
def encoders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Encoder]:
    made = {
        arch: AutoTokenizer.from_pretrained(tiny(tmp_path_factory.mktemp("m"), arch)) for arch in ("llama", "qwen2")
    }
    made |= {"sentencepiece": sentencepiece(), "world": make_tokenizer(["Ada", "wrote", "Who", "Rate"])}
    return {arch: Encoder(tokenizer, "Rate it.") for arch, tokenizer in made.items()}


def decoded(tokenizer: Any, ids: Sequence[int]) -> str:
    return str(tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))


def until(texts: Sequence[str], length: int) -> int:
    begin = texts[-1][:length]
    return bisect_left(range(len(texts)), True, key=lambda count: texts[count].startswith(begin))


def partly_until(texts: Sequence[str], length: int) -> int:
    return bisect_left(range(len(texts) - 1), length, key=lambda count: len(texts[count + 1])) + 1


@pytest.mark.parametrize("arch", ["llama", "qwen2", "world", "sentencepiece", "without first space"])
def test_counts_are_those_of_decoding_everything(encoders: dict[str, Encoder], arch: str) -> None:
    encoder = encoders[arch] if arch in encoders else encoders["sentencepiece"]
    tokenizer = encoder.tokenizer if arch in encoders else without_first_space()
    rng = random.Random(1)
    for _ in range(60):
        ids = encoder.pieces("".join(rng.choices(PIECES, k=rng.randint(1, 30))))
        for _ in range(rng.randint(0, 3)):  # tokens that are no text, and bytes that are no character
            ids.insert(rng.randint(0, len(ids)), rng.choice([encoder.end_id, rng.choice(ids)]))
        texts = encoder.token_texts()
        texts._decode = lambda some: decoded(tokenizer, some)
        every = [""]
        for token in ids:
            texts.add(token)
            every.append(decoded(tokenizer, ids[: len(every)]))
            if rng.random() < 0.2 or len(every) > len(ids):
                assert texts.text == every[-1]
        for length in range(1, len(every[-1]) + 1):
            assert texts.tokens_until(length) == until(every, length)
            assert texts.tokens_until(length, partly=True) == partly_until(every, length)
        assert texts.tokens_until(0) == 0 and texts.tokens_until(10_000) == until(every, 10_000)


def work(encoder: Encoder, sentences: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens are decoded to read an answer as it grows, to find its sentences, and to spread its credit."""
    texts = [f"In 18{at:02} she wrote a letter to London." for at in range(sentences)]
    ids = encoder.completion(texts, [9] * sentences, finished=False)
    text, logps = parse(encoder.decode(ids)), [0.0] * len(ids)
    counts, decode = [0, 0, 0, 0], encoder.tokenizer.decode

    def count(at: int) -> None:
        def counted(some: Any, **options: Any) -> Any:
            counts[at] += len(some)
            return decode(some, **options)

        monkeypatch.setattr(encoder.tokenizer, "decode", counted)

    class ByTokens:
        needs_token_logps = needs_distribution = True

        def confidence(self, sentence: Sentence) -> float:
            return 0.5

    count(0)
    reader = AnswerReader(encoder)
    assert sum(len(reader.on_token(token)) for token in ids) == sentences
    count(1)
    growing = GrowingAnswer(encoder, [1], ByTokens())  # type: ignore[arg-type]
    for token in ids:
        if not growing.on_token(token):
            while due := growing.due(None, [], []):
                growing.take(due[0], TokenScores((), choices=tuple(map(float, range(11)))))
            assert growing.release(logps)[0].sentence.token_logps
    count(2)
    assert len(sentence_spans(text, ids, encoder)) == sentences
    count(3)
    module: Any = SimpleNamespace(encoder=encoder, credit="tag")
    spread = RolloutModule._spread(module, [1.0] * sentences, text, Completion(tuple(ids), tuple(logps), False))
    assert len(spread) == len(ids)
    monkeypatch.undo()
    return counts


def test_the_work_grows_with_the_answer(encoders: dict[str, Encoder], monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = (work(encoders["llama"], sentences, monkeypatch) for sentences in (20, 40))
    for once, twice in zip(few, many, strict=True):
        assert twice < 2.5 * once


@pytest.mark.parametrize("arch", ["llama", "qwen2", "sentencepiece"])
def test_a_limit_between_the_bytes_of_a_character_leaves_out_that_character_only(
    encoders: dict[str, Encoder], arch: str
) -> None:
    """SentencePiece decodes a run of bytes to U+FFFD altogether where its last character is incomplete."""
    encoder = encoders[arch]
    text = "Ada spoke አማርኛ. She liked ሰላምታ and é😀日本 " + "ሰላምታ" * 9
    ids, reader, known = encoder.pieces(text), AnswerReader(encoder), ""
    for count, token in enumerate(ids, 1):
        reader.on_token(token)
        written = encoder.written(ids[:count])
        assert reader._text_so_far() == written and text.startswith(written)
        assert written.startswith(known)  # nothing is taken back
        assert len(encoder.decode(ids[:count]).rstrip("\ufffd")) <= len(written)
        known = written
    assert known == text
    assert encoder.written(encoder.pieces("She liked ሰላምታ")[:-1]) == "She liked ሰላም"
    assert encoder.written([*encoder.pieces("ታ")[:-1]]) == encoder.written([]) == ""
