"""The truth engine against an outside implementation, a plain loop, and itself at other lengths. One thread."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from grammarlab.benchmark.paired import in_turn, seconds, summary
from grammarlab.config import BenchmarkConfig, ConfigError, TrainConfig
from grammarlab.data import SentenceSource
from grammarlab.language import PCFG, Sentence, from_text, load
from grammarlab.language.grammar import Nonterminal
from grammarlab.parts import build_parts, library_language

_SENTENCES = 200  # that the samplers draw in a repeat


def truth_cases(config: BenchmarkConfig) -> list[dict[str, Any]]:
    """Ratios of seconds, first to second; what both compute is checked to be equal before it is timed."""
    return [
        *(_next_words(name, config.repeats) for name in ("cfg3b", "cfg3f")),
        _sampler(config.repeats),
        *_lengths(config.repeats),
        _share_of_a_step(config.repeats),
    ]


def _case(
    case: str,
    ours: Callable[[], Any],
    peer: str,
    theirs: Callable[[], Any],
    repeats: int,
    equal: bool,
    scale: float = 1.0,
) -> dict[str, Any]:
    """`scale`: work of the second in units of the first."""
    pairs = in_turn(lambda: seconds(ours), lambda: seconds(theirs) * scale, repeats)
    return summary(f"{case} / {peer}", peer, pairs, equal=equal)


def _typical(language: PCFG) -> Sentence:
    """Of 101 drawn sentences the one of median length."""
    return sorted(language.sample(101, np.random.default_rng(1)), key=len)[50]


def _next_words(name: str, repeats: int) -> dict[str, Any]:
    """All distributions of the next word of one sentence, against genlm-grammar."""
    language = load(name)
    sentence = _typical(language)
    outside = _genlm(language)
    rows = language.next_token_probs(sentence)
    equal = bool(np.allclose(outside(sentence), rows, rtol=0, atol=1e-8))
    case = f"next words of a {name} sentence of {len(sentence)} words"
    return _case(
        case, lambda: language.next_token_probs(sentence), "genlm-grammar", lambda: outside(sentence), repeats, equal
    )


def _genlm(language: PCFG) -> Callable[[Sentence], np.ndarray]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own dependencies
        try:
            from genlm.grammar import CFG, EOS, EarleyLM, Float, add_EOS
        except ImportError:
            raise ConfigError("benchmark=truth: needs genlm-grammar, which the extra `dev` installs") from None
    grammar = CFG(R=Float, S=language.grammar.start.name, V=set(language.terminals))
    for left, rules in language.grammar.rules.items():
        for rule in rules:
            grammar.add(rule.probability, left.name, *(str(symbol) for symbol in rule.right))
    model = EarleyLM(add_EOS(grammar))

    def rows(sentence: Sentence) -> np.ndarray:
        model.clear_cache()
        found = [model.p_next(sentence[:length]) for length in range(len(sentence) + 1)]
        return np.array([[row[word] for word in (*language.terminals, EOS)] for row in found])

    return rows


def _sampler(repeats: int) -> dict[str, Any]:
    """Sentences of cfg3b as word indices, against rewriting symbol by symbol in Python."""
    language = load("cfg3b")
    rng = np.random.default_rng(2)
    choices = {
        left: (np.cumsum([rule.probability for rule in rules]), [rule.right[::-1] for rule in rules])
        for left, rules in language.grammar.rules.items()
    }

    def plain() -> list[Sentence]:
        drawn: list[Sentence] = []
        for _ in range(_SENTENCES):
            words: list[str] = []
            stack: list[Nonterminal | str] = [language.grammar.start]
            while stack:
                symbol = stack.pop()
                if isinstance(symbol, str):
                    words.append(symbol)
                else:
                    cumulative, rights = choices[symbol]
                    stack.extend(rights[int(np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right"))])
            drawn.append(tuple(words))
        return drawn

    lengths = [[len(s) for s in sentences] for sentences in (plain(), language.sample(_SENTENCES, rng))]
    error = math.sqrt(2 * language.length_variance() / _SENTENCES)
    equal = abs(float(np.mean(lengths[0]) - np.mean(lengths[1]))) < 4 * error  # in law: they share no random numbers
    case = f"{_SENTENCES} cfg3b sentences of 276 words on average"
    return _case(case, lambda: language.sample_indices(_SENTENCES, rng), "plain Python", plain, repeats, equal)


def _lengths(repeats: int) -> list[dict[str, Any]]:
    """Time a word of a long sentence against that of a short one; of an ambiguous one time a word cubed."""
    shapes: Sequence[tuple[str, PCFG, Callable[[int], Sentence], int, int, int]] = [
        ("tail, a word", load("tail"), lambda n: ("a",) * n, 5_000, 500, 1),
        ("dyck1, a word, pairs", load("dyck1"), lambda n: ("(", ")") * (n // 2), 5_000, 500, 1),
        ("dyck1, a word, nested", load("dyck1"), lambda n: ("(",) * (n // 2) + (")",) * (n // 2), 5_000, 500, 1),
        ("double, a word cubed", from_text("S -> S S [.25] | 'a' [.75]", "S"), lambda n: ("a",) * n, 400, 200, 3),
    ]
    cases = []
    for name, language, sentence, long, short, power in shapes:
        many = (long // short) ** power  # times the work, if the time a word is the same
        one, other = sentence(long), sentence(short)
        rows = language.next_token_probs(one)[: short // 2]
        equal = bool(np.allclose(rows, language.next_token_probs(other)[: short // 2], rtol=0, atol=1e-12))
        cases.append(
            _case(
                f"{name}, {long} words",
                lambda language=language, one=one: language.next_token_probs(one),  # type: ignore[misc]
                f"{short} words",
                lambda language=language, other=other: language.next_token_probs(other),  # type: ignore[misc]
                repeats,
                equal,
                scale=many,
            )
        )
    return cases


def _share_of_a_step(repeats: int) -> dict[str, Any]:
    """Drawing a batch of fresh captions against a bare training step on it."""
    settings = TrainConfig(language=library_language("captions"))
    parts = build_parts(settings)
    source = SentenceSource(parts.language, parts.vocabulary)
    rng = np.random.default_rng(3)
    model = parts.model
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.optimizer.learning_rate, fused=True)
    rows = source.rows(settings.data.batch_size, rng)

    def step() -> None:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten(), ignore_index=model.pad_id)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    def many(work: Callable[[], Any]) -> Callable[[], None]:
        def repeat() -> None:
            for _ in range(50):
                work()

        return repeat

    draw = many(lambda: source.rows(settings.data.batch_size, rng))
    return _case("drawing a batch of captions", draw, "bare training step", many(step), repeats, equal=True)
