"""A language given by a probabilistic context-free grammar."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np

from grammarlab.language.chart import Chart
from grammarlab.language.grammar import Grammar, GrammarError, Nonterminal, Rule, Symbol
from grammarlab.language.protocol import (
    ENUMERATION_LIMIT,
    FloatArray,
    NotEnumerableError,
    Quantity,
    Sentence,
    as_sentence,
)
from grammarlab.language.table import SentenceTable

# Sentences drawn where a sum over all of them is out of reach.
ESTIMATE_SAMPLES = 2_000
ESTIMATE_SEED = 2_718_281_828  # fixed, and no seed that a run is likely to have

# Where counting derivations stops: a grammar of a few lines can have more than can be written down.
_MANY = 10**15


class PCFG:
    """The finite language of a grammar without recursion.

    Small languages are written out once and answered from the table; the chart answers for larger ones.
    Raises `GrammarError` for a recursive grammar.
    """

    def __init__(self, grammar: Grammar) -> None:
        if symbol := grammar.recursive_symbol():
            raise GrammarError(f"{symbol} derives itself: recursive grammars are not supported yet")
        self.grammar = grammar
        self.terminals = grammar.terminals
        self.mass = 1.0

    def sample(self, n: int, rng: np.random.Generator) -> list[Sentence]:
        if self._small is not None:
            return self._small.sample(n, rng)
        return [self._derive(rng) for _ in range(n)]

    def log_prob(self, sentences: Sequence[Sentence]) -> FloatArray:
        if self._small is not None:
            return self._small.log_prob(sentences)
        return np.array([Chart(self.grammar, as_sentence(s)).inside(self.grammar.start, 0, len(s)) for s in sentences])

    def next_token_probs(self, sentence: Sentence) -> FloatArray:
        if self._small is not None:
            return self._small.next_token_probs(sentence)
        chart = Chart(self.grammar, as_sentence(sentence))
        logs = np.stack([chart.next_token_logs(length) for length in range(len(sentence) + 1)])
        most = logs.max(axis=1, keepdims=True)
        mass = np.exp(logs - np.where(most > -np.inf, most, 0.0))  # an impossible prefix: nothing follows, a row of 0
        total = mass.sum(axis=1, keepdims=True)
        return mass / np.where(total > 0, total, 1.0)

    def entropy(self) -> Quantity:
        if self._small is not None:
            return self._small.entropy()
        surprise = -self.log_prob(self.sample(ESTIMATE_SAMPLES, np.random.default_rng(ESTIMATE_SEED)))
        return Quantity(float(surprise.mean()), float(surprise.std(ddof=1) / math.sqrt(len(surprise))))

    def mean_length(self) -> Quantity:
        lengths: dict[Nonterminal, float] = {}

        def expected(symbol: Symbol) -> float:
            if isinstance(symbol, str):
                return 1.0
            if symbol not in lengths:
                lengths[symbol] = math.fsum(
                    rule.probability * math.fsum(map(expected, rule.right)) for rule in self.grammar.rules[symbol]
                )
            return lengths[symbol]

        return Quantity(expected(self.grammar.start))

    def max_length(self) -> int:
        return self._fold(lambda _: 1, sum, max)

    def size(self, limit: int = ENUMERATION_LIMIT) -> int:
        return len(self.enumerate(limit))

    def enumerate(self, limit: int = ENUMERATION_LIMIT) -> list[tuple[Sentence, float]]:
        return self._table(limit).enumerate()

    def truncated(self, max_length: int) -> PCFG | SentenceTable:
        if self.max_length() <= max_length:
            return self
        return self._table(ENUMERATION_LIMIT).truncated(max_length)

    @cached_property
    def _small(self) -> SentenceTable | None:
        return None if self._derivations > ENUMERATION_LIMIT else self._write_out()

    @cached_property
    def _derivations(self) -> int:
        """Number of derivations, up to a cap: at least the number of sentences, and equal if none is ambiguous."""
        return self._fold(
            lambda _: 1, lambda parts: min(math.prod(parts), _MANY), lambda options: min(sum(options), _MANY)
        )

    def _fold(
        self,
        word: Callable[[str], int],
        sequence: Callable[[list[int]], int],
        choice: Callable[[list[int]], int],
    ) -> int:
        """A value of the start symbol built bottom-up from words, sequences and choices between rules."""
        values: dict[Nonterminal, int] = {}

        def value(symbol: Symbol) -> int:
            if isinstance(symbol, str):
                return word(symbol)
            if symbol not in values:
                values[symbol] = choice([sequence([value(s) for s in r.right]) for r in self.grammar.rules[symbol]])
            return values[symbol]

        return value(self.grammar.start)

    def _table(self, limit: int) -> SentenceTable:
        if self._derivations > limit:
            count = f"more than {_MANY}" if self._derivations == _MANY else str(self._derivations)
            raise NotEnumerableError(f"the language has {count} derivations, {limit} can be written out")
        return self._small if self._small is not None else self._write_out()

    def _write_out(self) -> SentenceTable:
        """All sentences, with the probabilities of the derivations of the same sentence added up."""
        done: dict[Nonterminal, dict[Sentence, float]] = {}

        def yields(symbol: Symbol) -> dict[Sentence, float]:
            if isinstance(symbol, str):
                return {(symbol,): 1.0}
            if symbol not in done:
                done[symbol] = {}
                for rule in self.grammar.rules[symbol]:
                    for words, prob in _concatenations(rule, yields).items():
                        done[symbol][words] = done[symbol].get(words, 0.0) + rule.probability * prob
            return done[symbol]

        return SentenceTable(self.terminals, yields(self.grammar.start))

    def _derive(self, rng: np.random.Generator) -> Sentence:
        words: list[str] = []
        stack: list[Symbol] = [self.grammar.start]
        while stack:
            symbol = stack.pop()
            if isinstance(symbol, str):
                words.append(symbol)
            else:
                rules, cumulative = self._choices[symbol]
                rule = rules[int(np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right"))]
                stack.extend(reversed(rule.right))
        return tuple(words)

    @cached_property
    def _choices(self) -> dict[Nonterminal, tuple[tuple[Rule, ...], FloatArray]]:
        return {
            left: (rules, np.cumsum([rule.probability for rule in rules])) for left, rules in self.grammar.rules.items()
        }


def _concatenations(rule: Rule, yields: Callable[[Symbol], dict[Sentence, float]]) -> dict[Sentence, float]:
    so_far: dict[Sentence, float] = {(): 1.0}
    for symbol in rule.right:
        longer: dict[Sentence, float] = {}
        for words, prob in so_far.items():
            for more, prob_more in yields(symbol).items():
                longer[words + more] = longer.get(words + more, 0.0) + prob * prob_more
        so_far = longer
    return so_far
