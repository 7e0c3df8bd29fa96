"""The tables of a run's end, against what the model and the language say by other ways."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import SMALL, Ended

from grammarlab import findings, tables
from grammarlab.config import ModelConfig, Positions
from grammarlab.evaluation import Sample, Truth, compare_with_truth, sequence_log_probs
from grammarlab.language import from_text, load
from grammarlab.model import Attention, Decoder
from grammarlab.vocabulary import Vocabulary

Command = Callable[..., Ended]
CAPTIONS = load("captions")
VOCABULARY = Vocabulary(CAPTIONS.terminals)

FAMILY = [
    ModelConfig(width=16, heads=4, depth=2),
    ModelConfig(width=16, heads=4, causal=False),
    ModelConfig(width=16, heads=4, kv_heads=2, positions=Positions.rotary, window=3),
    ModelConfig(width=16, heads=4, positions=Positions.alibi, qk_norm=True),
    ModelConfig(width=16, heads=4, positions=Positions.relative, causal=False, window=2),
    ModelConfig(width=16, heads=4, kv_heads=1, uniform_attention=True, positions=Positions.none),
]


def new_model(config: ModelConfig) -> Decoder:
    torch.manual_seed(1)
    return Decoder(
        config,
        vocabulary_size=len(VOCABULARY),
        pad_id=VOCABULARY.pad_id,
        never_generated=(VOCABULARY.pad_id, VOCABULARY.begin_id),
    ).double()


@pytest.mark.parametrize("config", FAMILY, ids=str)
def test_attention_maps_are_the_weights_that_the_model_uses(config: ModelConfig) -> None:
    """Values weighed by them, through the output's map, are what the layer gives."""
    model = new_model(config).eval()
    tokens = torch.from_numpy(VOCABULARY.encode([("a", "photo", "of", "a", "small", "plus"), ("a", "photo")]))
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []

    def look(layer: torch.nn.Module, arguments: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        assert isinstance(layer, Attention)
        seen.append((layer.project(arguments[0], None)[2], output))

    layers = [module for module in model.modules() if isinstance(module, Attention)]
    for layer in layers:
        layer.register_forward_hook(look)
    weights, visible = model.attention_maps(tokens)
    assert weights.shape == visible.shape == (config.depth, 2, config.heads, tokens.shape[1], tokens.shape[1])
    for layer, weight, (values, output) in zip(layers, weights, seen, strict=True):
        mixed = weight @ values.repeat_interleave(config.heads // (config.kv_heads or config.heads), dim=1)
        expected = layer.out(mixed.transpose(1, 2).flatten(2))
        torch.testing.assert_close(expected, output, rtol=0, atol=1e-12)
    assert (weights[~visible] == 0).all()
    rows = weights.sum(-1)
    torch.testing.assert_close(rows, visible.any(-1).double(), rtol=0, atol=1e-12)
    later = torch.ones(tokens.shape[1], tokens.shape[1]).triu(1).bool()
    assert bool(visible[..., later].any()) is not config.causal


def test_the_hooks_are_gone_afterwards() -> None:
    model = new_model(FAMILY[0])
    model.attention_maps(torch.from_numpy(VOCABULARY.encode([("a",)])))
    assert not any(module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("a photo of a small small", 5),
        ("photo", 0),
        ("a photo of", 3),  # all good, and no sentence yet
        ("", 0),
        ("a photo of a small plus a", 6),
    ],
)
def test_the_first_word_that_cannot_stand_there(text: str, fault: int) -> None:
    words = tuple(text.split())
    assert findings.first_fault(CAPTIONS, words) == fault
    starts = {s[:n] for s, _ in CAPTIONS.enumerate() for n in range(len(s) + 1)}
    assert words[:fault] in starts and (fault == len(words) or words[: fault + 1] not in starts)


def test_only_what_is_invalid_has_a_fault() -> None:
    def sample(text: str, valid: bool) -> Sample:
        return Sample(1.0, tuple(text.split()), True, valid, -1.0 if valid else -math.inf, -2.0, (), ())

    table = findings.sample_table([sample("a small plus", True), sample("a plus", False)], CAPTIONS)
    assert table["wrong_at"].to_list() == [None, 1]
    assert table["valid"].to_list() == ["yes", "no"]


def test_temperatures_and_sentences_are_those_of_the_measures() -> None:
    model = new_model(FAMILY[0])
    truth = Truth(CAPTIONS, VOCABULARY, limit=100, samples=10, seed=1)
    table = findings.temperature_table(model, truth, {0.5, 1.0}, draws=20, batch_size=5)
    comparison = compare_with_truth(model, truth, temperatures=[0.5], draws=20)
    measures = comparison.measures
    for row, mark in zip(table.rows(), ("T0_5/", ""), strict=True):
        expected = (measures[f"truth/{mark}validity"], measures[f"truth/{mark}coverage"])
        assert row[1:] == pytest.approx(expected, rel=1e-12)
    assert table["temperature"].to_list() == [0.5, 1.0]
    torch.testing.assert_close(comparison.sentence_log_probs, sequence_log_probs(model, truth.rows), rtol=1e-12, atol=0)


@pytest.mark.parametrize("causal", [True, False])
def test_next_words_multiply_to_the_sentence(causal: bool) -> None:
    model = new_model(ModelConfig(width=16, heads=2, causal=causal))
    words = ("a", "photo", "of", "a", "large", "circle")
    table = findings.next_words_table(model, CAPTIONS, VOCABULARY, words)
    tokens = (*words, findings.SHOWN_END)
    chosen = [
        table.filter((table["position"] == i) & (table["word"] == token)).row(0, named=True)
        for i, token in enumerate(tokens, start=1)
    ]
    row = torch.from_numpy(VOCABULARY.encode([words]))
    log_q = sum(math.log(each["model"]) for each in chosen)
    assert log_q == pytest.approx(float(sequence_log_probs(model, row)), rel=1e-12)
    assert math.prod(each["language"] for each in chosen) == pytest.approx(1 / 8, rel=1e-12)
    assert [each["prefix"] for each in chosen] == [" ".join(words[:i]) for i in range(len(tokens))]


def test_long_sentences_are_shown_as_far_as_the_table_allows() -> None:
    language = from_text("S -> 'x' S [0.99] | 'x' [0.01]", start="S")
    vocabulary = Vocabulary(language.terminals)
    model = Decoder(ModelConfig(width=8, heads=2, context=100), vocabulary_size=len(vocabulary), pad_id=0)
    table = findings.attention_table(model, vocabulary, ("x",) * 90)
    assert len(table) == 2 * findings.SHOWN_TOKENS**2


def test_a_run_leaves_the_tables_of_the_sentence_that_was_asked_for(command: Command) -> None:
    ended = command("train", *SMALL, "evaluation.sentence='a large plus'")
    assert (ended.status, ended.err) == (0, "")
    folder = Path(ended.last_line)
    read = {name: tables.read(folder, name) for name in tables.SCHEMAS}
    assert all(table is not None and len(table) for table in read.values())
    attention = read["attention"]
    assert attention is not None
    assert attention.filter(attention["query"] == 0)["key_word"].to_list()[:4] == ["(begin)", "a", "large", "plus"]


@pytest.mark.parametrize(
    ("sentence", "message"),
    [("'a red plus'", "unknown word 'red'"), ("'a a a a a a a a a'", "has 9 words; model.context=9 holds")],
)
def test_a_sentence_that_cannot_be_shown_is_refused(command: Command, sentence: str, message: str) -> None:
    ended = command("train", *SMALL, f"evaluation.sentence={sentence}")
    assert ended.status == 1
    assert ended.err.startswith("error: evaluation.sentence=") and message in ended.err and ended.err.count("\n") == 1
    assert not any(Path("outputs").glob("runs/*"))
