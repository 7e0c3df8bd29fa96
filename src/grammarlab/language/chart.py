"""Exact probabilities of one sentence under a grammar that is not recursive: sums over all parses, no tree written out.

inside(X, i, j): probability that X derives exactly words i..j (Baker 1979; Lari and Young 1990).
Prefix sums: probability that X derives a string that begins with words i.. (Jelinek and Lafferty 1991, by their case
distinction: the yield of the first symbol either covers all that is left of the prefix, or ends inside it).
Here they run over the rules as written, without normal forms: in a grammar where no symbol derives itself both
recursions end. Memory and time are polynomial in the length. Everything is kept as a natural log, so that a long
sentence does not underflow.
"""

from __future__ import annotations

import math

import numpy as np

from grammarlab.language.grammar import Grammar, Nonterminal, Symbol
from grammarlab.language.protocol import FloatArray, Sentence

Right = tuple[Symbol, ...]


class Chart:
    """All sums about one sentence; they are made when asked for, and kept."""

    def __init__(self, grammar: Grammar, words: Sentence) -> None:
        self.grammar = grammar
        self.words = words
        self._column = {word: index for index, word in enumerate(grammar.terminals)}
        self._nothing = np.full(len(grammar.terminals), -np.inf)
        self._inside: dict[tuple[Nonterminal, int, int], float] = {}
        self._rest: dict[tuple[Right, int, int], float] = {}
        self._first: dict[Nonterminal, FloatArray] = {}

    def inside(self, symbol: Nonterminal, i: int, j: int) -> float:
        """Log-probability that `symbol` derives exactly words i..j; −inf where it cannot."""
        key = (symbol, i, j)
        if key not in self._inside:
            self._inside[key] = _log_sum(
                [math.log(rule.probability) + self._sequence(rule.right, i, j) for rule in self.grammar.rules[symbol]]
            )
        return self._inside[key]

    def _sequence(self, right: Right, i: int, j: int) -> float:
        if not right:
            return 0.0 if i == j else -math.inf
        first, rest = right[0], right[1:]
        if isinstance(first, str):
            return self._sequence(rest, i + 1, j) if i < j and self.words[i] == first else -math.inf
        key = (right, i, j)
        if key not in self._rest:
            lefts = ((k, self.inside(first, i, k)) for k in range(i, j + 1))
            self._rest[key] = _log_sum([left + self._sequence(rest, k, j) for k, left in lefts if left > -math.inf])
        return self._rest[key]

    def next_token_logs(self, length: int) -> FloatArray:
        """(V + 1,) for the first `length` words: log P(it begins with them and word v), log P(it is just them)."""
        memo: dict[tuple[Nonterminal, int], FloatArray] = {}
        rests: dict[tuple[Right, int], FloatArray] = {}

        def after(symbol: Nonterminal, i: int) -> FloatArray:
            """(V,) log-probability that the yield of `symbol` begins with words i..length and then word v."""
            if i == length:
                return self._first_words(symbol)
            if (symbol, i) not in memo:
                options = [math.log(r.probability) + after_sequence(r.right, i) for r in self.grammar.rules[symbol]]
                memo[symbol, i] = np.logaddexp.reduce(options)
            return memo[symbol, i]

        def after_sequence(right: Right, i: int) -> FloatArray:
            if not right:
                return self._nothing
            first, rest = right[0], right[1:]
            if isinstance(first, str):
                if i == length:
                    return self._one(first)
                return after_sequence(rest, i + 1) if self.words[i] == first else self._nothing
            if (right, i) not in rests:
                lefts = ((k, self.inside(first, i, k)) for k in range(i, length + 1))
                terms = [left + after_sequence(rest, k) for k, left in lefts if left > -math.inf]
                rests[right, i] = np.logaddexp.reduce([after(first, i), *terms])
            return rests[right, i]

        return np.append(after(self.grammar.start, 0), self.inside(self.grammar.start, 0, length))

    def _first_words(self, symbol: Nonterminal) -> FloatArray:
        """(V,) log-probability that the yield of `symbol` begins with word v; what lacks to 1 is the empty yield."""
        if symbol not in self._first:
            terms = [self._nothing]
            for rule in self.grammar.rules[symbol]:
                reach = math.log(rule.probability)  # that everything before this place of the rule is empty
                for child in rule.right:
                    terms.append(reach + (self._one(child) if isinstance(child, str) else self._first_words(child)))
                    reach += -math.inf if isinstance(child, str) else self.inside(child, 0, 0)
                    if reach == -math.inf:
                        break
            self._first[symbol] = np.logaddexp.reduce(terms)
        return self._first[symbol]

    def _one(self, word: str) -> FloatArray:
        row = self._nothing.copy()
        row[self._column[word]] = 0.0
        return row


def _log_sum(logs: list[float]) -> float:
    """log Σ exp, −inf for nothing."""
    most = max(logs, default=-math.inf)
    if most == -math.inf:
        return most
    return most + math.log(math.fsum(math.exp(value - most) for value in logs))
