"""Exact probabilities of one sentence under a grammar that is not recursive: sums over all parses, no tree written out.

inside(X, i, j): probability that X derives exactly words i..j (Baker 1979; Lari and Young 1990).
Prefix sums: probability that X derives a string that begins with words i.. (Jelinek and Lafferty 1991, by their case
distinction: the yield of the first symbol either covers all that is left of the prefix, or ends inside it).
Here they run over the rules as written, without normal forms: in a grammar where no symbol derives itself both
recursions end. Memory and time are polynomial in the length; nothing enumerates trees.
"""

from __future__ import annotations

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
        self._inside: dict[tuple[Nonterminal, int, int], float] = {}
        self._rest: dict[tuple[Right, int, int], float] = {}
        self._first: dict[Nonterminal, FloatArray] = {}

    def inside(self, symbol: Nonterminal, i: int, j: int) -> float:
        """Probability that `symbol` derives exactly words i..j."""
        key = (symbol, i, j)
        if key not in self._inside:
            self._inside[key] = sum(
                rule.probability * self._sequence(rule.right, i, j) for rule in self.grammar.rules[symbol]
            )
        return self._inside[key]

    def _sequence(self, right: Right, i: int, j: int) -> float:
        if not right:
            return float(i == j)
        first, rest = right[0], right[1:]
        if isinstance(first, str):
            return self._sequence(rest, i + 1, j) if i < j and self.words[i] == first else 0.0
        if not rest:
            return self.inside(first, i, j)
        key = (right, i, j)
        if key not in self._rest:
            total = 0.0
            for k in range(i, j + 1):
                if left := self.inside(first, i, k):
                    total += left * self._sequence(rest, k, j)
            self._rest[key] = total
        return self._rest[key]

    def next_token_mass(self, length: int) -> FloatArray:
        """(V + 1,) for the first `length` words: P(sentence begins with them and word v), and P(it is just them)."""
        memo: dict[tuple[Nonterminal, int], FloatArray] = {}
        rests: dict[tuple[Right, int], FloatArray] = {}

        def after(symbol: Nonterminal, i: int) -> FloatArray:
            """(V,) probability that the yield of `symbol` begins with words i..length and then word v."""
            if i == length:
                return self._first_words(symbol)
            if (symbol, i) not in memo:
                memo[symbol, i] = sum(
                    (r.probability * after_sequence(r.right, i) for r in self.grammar.rules[symbol]),
                    start=nothing,
                )
            return memo[symbol, i]

        def after_sequence(right: Right, i: int) -> FloatArray:
            if not right:
                return nothing
            first, rest = right[0], right[1:]
            if isinstance(first, str):
                if i == length:
                    return self._one(first)
                return after_sequence(rest, i + 1) if self.words[i] == first else nothing
            if (right, i) not in rests:
                total = after(first, i)
                for k in range(i, length + 1):
                    if left := self.inside(first, i, k):
                        total = total + left * after_sequence(rest, k)
                rests[right, i] = total
            return rests[right, i]

        nothing = np.zeros(len(self.grammar.terminals))
        return np.append(after(self.grammar.start, 0), self.inside(self.grammar.start, 0, length))

    def _first_words(self, symbol: Nonterminal) -> FloatArray:
        """(V,) probability that the yield of `symbol` begins with word v; the rest to 1 is the empty yield."""
        if symbol not in self._first:
            total = np.zeros(len(self.grammar.terminals))
            for rule in self.grammar.rules[symbol]:
                reach = rule.probability  # that everything before this place of the rule is empty
                for child in rule.right:
                    words = self._one(child) if isinstance(child, str) else self._first_words(child)
                    total += reach * words
                    reach *= 0.0 if isinstance(child, str) else self.inside(child, 0, 0)
            self._first[symbol] = total
        return self._first[symbol]

    def _one(self, word: str) -> FloatArray:
        row = np.zeros(len(self.grammar.terminals))
        row[self._column[word]] = 1.0
        return row
