"""A trained model asked: prompts in, sentences with their probabilities out, and what the terminal shows of them."""

import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Ended, small_config

from grammarlab import run, terminal
from grammarlab.config import ConfigError, GenerateConfig, ModelConfig
from grammarlab.evaluation import Sample
from grammarlab.language import END
from grammarlab.prompting import Prompting

Command = Callable[..., Ended]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of a model that knows little, so that much of what it says is wrong."""
    folder = tmp_path_factory.mktemp("run")
    run.train(small_config(), folder, progress_bar=False)
    return str(folder / "checkpoints/last.ckpt")


@pytest.fixture(scope="module")
def open_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of a model without the causal mask."""
    folder = tmp_path_factory.mktemp("open")
    run.train(small_config(model=ModelConfig(width=12, heads=3, causal=False)), folder, progress_bar=False)
    return str(folder / "checkpoints/last.ckpt")


def asked(checkpoint: str, **options: Any) -> tuple[Prompting, list[str], list[Sample]]:
    prompting = Prompting(GenerateConfig(checkpoint=checkpoint, **options))
    prompts = prompting.prompts()
    return prompting, prompts, prompting.samples(prompts)


# ---- sentences -----------------------------------------------------------------------------------------------------


def test_each_prompt_of_a_file_goes_on_as_often_as_asked(checkpoint: str, tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("a photo\n\n  a   large \n")
    _, prompts, samples = asked(checkpoint, prompts_file=str(file), samples=3)
    assert [prompt.split() for prompt in prompts] == [["a", "photo"]] * 3 + [["a", "large"]] * 3
    for prompt, sample in zip(prompts, samples, strict=True):
        assert sample.words[:2] == tuple(prompt.split())
        assert sample.valid == (sample.log_prob_language == pytest.approx(-3 * math.log(2)))
    assert len({sample.words for sample in samples}) > 2
    for cache in (True, False):
        assert [s.words for s in asked(checkpoint, prompts_file=str(file), samples=3, cache=cache)[2]] == [
            s.words for s in samples
        ]


@pytest.mark.parametrize("options", [{}, {"constrained": True, "temperature": 0.7}, {"top_k": 2}], ids=str)
def test_probabilities_come_with_each_drawn_token(checkpoint: str, options: dict[str, Any]) -> None:
    prompting, _, samples = asked(checkpoint, samples=40, **options)
    for sample in samples:
        assert sum(sample.drawn_log_probs) == pytest.approx(sample.log_prob_model, abs=1e-5)
        assert sum(prompting.language_log_probs(sample)) == pytest.approx(sample.log_prob_language)
        assert len(sample.drawn_log_probs) == len(sample.words) + sample.ended
    _, _, after = asked(checkpoint, prompt="a photo", samples=10, **options)
    assert all(len(sample.drawn_log_probs) == len(sample.words) + sample.ended - 2 for sample in after)


def test_a_constrained_sentence_is_valid_and_its_mass_that_of_the_legal_words(checkpoint: str) -> None:
    temperature = 1.7
    prompting, _, samples = asked(checkpoint, constrained=True, samples=60, temperature=temperature)
    free = asked(checkpoint, samples=60, temperature=temperature)[2]
    assert all(sample.valid for sample in samples)
    assert not all(sample.valid for sample in free)
    for sample in samples:
        ids = [prompting.vocabulary.begin_id, *prompting.vocabulary.word_ids(sample.words)]
        with torch.inference_mode():
            probs = (prompting.model(torch.tensor([ids]))[0].double() / temperature).softmax(-1)
        legal = prompting.language.next_token_probs(sample.words) > 0  # (T, words and end)
        mass = (probs.numpy()[:, prompting.vocabulary.column_ids] * legal).sum(-1)
        np.testing.assert_allclose(sample.drawn_legal_mass, mass, rtol=0, atol=1e-6)
    assert min(min(sample.drawn_legal_mass) for sample in samples) < 0.9


def test_a_constrained_word_has_its_renormalised_probability(checkpoint: str) -> None:
    prompting, _, samples = asked(checkpoint, constrained=True, samples=4000, prompt="a large")
    expected = {token.token: token.model for token in prompting.next_tokens(("a", "large"))}
    assert sum(expected.values()) == pytest.approx(1)
    for word, probability in expected.items():
        share = sum(sample.words[2] == word for sample in samples) / len(samples)
        assert share == pytest.approx(probability, abs=5 * math.sqrt(probability / len(samples)))


@pytest.mark.parametrize("options", [{}, {"constrained": True}, {"temperature": 0}, {"top_p": 0.8}], ids=str)
def test_a_stream_is_the_same_sentence_word_by_word(checkpoint: str, options: dict[str, Any]) -> None:
    prompting, prompts, samples = asked(checkpoint, samples=12, prompt="a", **options)
    for row, (prompt, sample) in enumerate(zip(prompts, samples, strict=True)):
        tokens = list(prompting.stream(prompt, row))
        assert tokens == [*sample.words[1:], *[END] * sample.ended]


@pytest.mark.parametrize("limit", [0, 1])
def test_limits_of_no_and_of_one_token(checkpoint: str, limit: int) -> None:
    prompting, _, samples = asked(checkpoint, prompt="a photo", max_new_tokens=limit, samples=5)
    for row, sample in enumerate(samples):
        assert len(sample.words) + sample.ended == 2 + limit
        assert len(sample.drawn_log_probs) == len(list(prompting.stream("a photo", row))) == limit
        assert not sample.valid or sample.ended


def test_what_may_come_next_is_what_language_and_model_say(checkpoint: str) -> None:
    prompting = Prompting(GenerateConfig(checkpoint=checkpoint, temperature=0.6))
    for words in ((), ("a",), ("a", "photo", "of")):
        tokens = prompting.next_tokens(words)
        p = dict(zip((*prompting.language.terminals, END), prompting.language.next_token_probs(words)[-1], strict=True))
        assert {t.token: t.language for t in tokens} == p  # the model leaves out none
        assert [t.language for t in tokens] == sorted((t.language for t in tokens), reverse=True)
        assert sum(t.model for t in tokens) == pytest.approx(1)
    greedy = Prompting(GenerateConfig(checkpoint=checkpoint, temperature=0))
    assert sorted(t.model for t in greedy.next_tokens(()))[-1] == 1


# ---- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options, message",
    [
        ({"prompt": "a dog"}, "prompt='a dog': unknown word 'dog'; the language has"),
        ({"prompt": "a " * 9}, "has 9 words; model.context=9 holds the begin token and 8"),
        ({"prompts_file": "nowhere"}, "prompts_file=nowhere: No such file"),
        ({"prompt": "photo a", "constrained": True}, "prompt='photo a': no sentence of the language begins so"),
    ],
)
def test_what_cannot_be_done_is_one_clear_line(checkpoint: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        asked(checkpoint, **options)
    assert "\n" not in str(caught.value)


def test_a_file_without_a_prompt_and_one_with_a_wrong_line(checkpoint: str, tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("\n \n")
    with pytest.raises(ConfigError, match="has no line with a prompt"):
        asked(checkpoint, prompts_file=str(file))
    file.write_text("a photo\n\na dog\n")
    with pytest.raises(ConfigError, match=r"prompts_file=.* line 3='a dog': unknown word 'dog'"):
        asked(checkpoint, prompts_file=str(file))
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="is not UTF-8 text"):
        asked(checkpoint, prompts_file=str(file))


def test_a_model_that_is_not_causal_goes_on_without_a_cache_alone(open_checkpoint: str) -> None:
    with pytest.raises(ConfigError, match=r"cache=true: the model was trained with model\.causal=false"):
        asked(open_checkpoint, cache=True)
    prompting, _, samples = asked(open_checkpoint, constrained=True, samples=5)
    assert all(sample.valid for sample in samples)
    assert list(prompting.stream("", 2)) == [*samples[2].words, END]


@pytest.mark.parametrize(
    "options, message",
    [
        ({"top_k": 0}, "top_k=0: must be at least 1"),
        ({"top_p": 0.0}, "top_p=0.0: must be above 0 and at most 1"),
        ({"min_p": 2.0}, "min_p=2.0: must be from 0 to 1"),
        ({"max_new_tokens": -1}, "max_new_tokens=-1: must be at least 0"),
        ({"stream": True, "json": True}, "stream=true: and json=true exclude each other"),
        ({"interactive": True, "samples": 2}, "samples=2: has no meaning with interactive=true"),
        ({"interactive": True, "stream": True}, "stream=True: has no meaning"),
        ({"interactive": True, "prompts_file": "x"}, "prompts_file=x: has no meaning"),
    ],
)
def test_options_that_exclude_each_other(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        GenerateConfig(**options)


# ---- the terminal --------------------------------------------------------------------------------------------------


def test_the_table_marks_what_is_wrong_unfinished_and_cut(
    checkpoint: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    prompting, _, samples = asked(checkpoint, samples=8, temperature=1.5, max_new_tokens=5)
    terminal.show_samples(prompting, constrained=False)
    out = capsys.readouterr().out
    _, table = out.split("─ \n")
    for line, sample in zip(table.splitlines(), samples, strict=False):
        assert line.split(" yes " if sample.valid else " no ")[0].strip() == sample.text + " …" * (not sample.ended)
        assert ("−∞" in line) == (not sample.valid)
    valid, unfinished = sum(s.valid for s in samples), sum(not s.ended for s in samples)
    assert f"{valid} of 8 valid, {len({s.words for s in samples})} distinct, {unfinished} not finished" in out
    assert "mass cut" not in out

    prompting, _, samples = asked(checkpoint, samples=3, constrained=True)
    terminal.show_samples(prompting, constrained=True)
    out = capsys.readouterr().out
    for sample in samples:
        assert any(line.split()[-1:] == [f"{1 - min(sample.drawn_legal_mass):.2g}"] for line in out.splitlines())


def test_json_has_every_drawn_token(checkpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    prompting, _, samples = asked(checkpoint, samples=20, prompt="a photo", constrained=True)
    terminal.print_json(prompting)
    for line, sample in zip(capsys.readouterr().out.splitlines(), samples, strict=True):
        read = json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
        assert (read["prompt"], tuple(read["words"]), read["text"]) == ("a photo", sample.words, sample.text)
        assert (read["ended"], read["valid"]) == (sample.ended, sample.valid)
        assert [drawn["token"] for drawn in read["drawn"]] == [*sample.words[2:], END]
        assert [drawn["log_prob_model"] for drawn in read["drawn"]] == list(sample.drawn_log_probs)
        assert [drawn["legal_mass"] for drawn in read["drawn"]] == list(sample.drawn_legal_mass)
        log_probs = [drawn["log_prob_language"] for drawn in read["drawn"]]
        assert sum(log_probs) == pytest.approx(-math.log(4))  # a photo: half of the 8 equal sentences


def test_the_stream_prints_the_sentences(checkpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    prompting, _, samples = asked(checkpoint, samples=6, prompt="a", max_new_tokens=4)
    terminal.show_stream(prompting)
    *lines, counts = capsys.readouterr().out.splitlines()
    assert lines == [sample.text + ("" if sample.ended else " …") for sample in samples]
    assert counts.startswith(f"{sum(s.valid for s in samples)} of 6 valid")


def test_a_conversation_shows_both_distributions_and_survives_mistakes(
    checkpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    prompting = Prompting(GenerateConfig(checkpoint=checkpoint, interactive=True))
    terminal.interact(prompting, "a", lines=["a dog", "photo photo", "a photo"])
    out = capsys.readouterr().out
    assert "error: prompt='a dog': unknown word 'dog'" in out
    assert out.count("goes on: ") == 3
    rows = [line.split() for line in out.splitlines()]
    tokens = {t.token: t for t in prompting.next_tokens(("a",))}
    photo = next(row for row in rows if row[:1] == ["photo"])
    assert photo[:2] == ["photo", "0.5000"]
    assert photo[2] == "█" * 10  # of 20 for all
    assert photo[3] == f"{tokens['photo'].model:.4f}"
    mass = sum(t.model for t in tokens.values() if t.language > 0)
    kl = sum(t.language * math.log(t.language / t.model) for t in tokens.values() if t.language > 0)
    assert f"legal mass of the model {mass:.6g}; KL(language‖model) of the next word {kl:.4g} nats" in out
    assert "no sentence of the language begins so\ngoes on: photo photo" in out
    sentences = [line.removeprefix("goes on: ") for line in out.splitlines() if line.startswith("goes on: ")]
    for row, prompt, sentence in zip((0, 2, 3), ("a", "photo photo", "a photo"), sentences, strict=True):
        drawn = list(prompting.stream(prompt, row))
        assert sentence == " ".join([prompt, *drawn[: -1 if drawn[-1] == END else None]]) + " …" * (drawn[-1] != END)


def test_many_words_are_cut_to_the_most_probable_with_the_rest_as_a_sum(
    checkpoint: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "_SHOWN", 4)
    prompting = Prompting(GenerateConfig(checkpoint=checkpoint, interactive=True))
    terminal.interact(prompting, "a", lines=[])
    rest = sum(token.model for token in prompting.next_tokens(("a",))[4:])
    assert any(line.split() == ["6", "more", "0.0000", f"{rest:.4f}"] for line in capsys.readouterr().out.splitlines())


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (("stream=true", "samples=3"), "of 3 valid"),
        (("constrained=true", "samples=3"), "3 of 3 valid"),
        (("top_k=1", "json=true"), '"drawn": ['),
        (("interactive=true", "prompt=a"), "> a photo\n"),
    ],
)
def test_the_command_line(
    checkpoint: str, command: Command, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], expected: str
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("a photo\n"))
    ended = command("generate", f"checkpoint={checkpoint}", *arguments)
    assert (ended.status, ended.err) == (0, "")
    assert expected in ended.out
