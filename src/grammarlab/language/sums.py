"""Sums over all derivations of a grammar, in closed form.

With M[X, Y] the mean number of Y in the right side of a rule of X, an expectation that adds up over the symbols of a
derivation solves x = c + M x (Booth and Thompson 1973; Chi 1999 for entropy and moments). A derivation ends with
probability 1 where no strongly connected part of M has a spectral radius above 1.

Axes: N nonterminals, in the order of `grammar.rules`.
"""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from grammarlab.language.grammar import Grammar, Nonterminal, Rule
from grammarlab.language.normal_form import NUMBERS, Equation, symbol_index
from grammarlab.language.protocol import FloatArray

# How far above 1 a spectral radius counts as 1: that of a grammar with decimal thirds is off by as much.
CRITICAL = 1e-9

# How near to 1 it has no finite means that a float could tell.
_ENDLESS = 1e-12


class Sums:
    """Means and masses of a grammar.

    `mean_matrix`: (N, N) M as above. `radii`: (N,) spectral radius of the strongly connected part of each symbol.
    """

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar
        self._index = symbol_index(grammar)
        n = len(grammar.rules)
        self.mean_matrix = np.zeros((n, n))
        for row, rules in enumerate(grammar.rules.values()):
            for rule in rules:
                for child in rule.right:
                    if isinstance(child, Nonterminal):
                        self.mean_matrix[row, self._index[child]] += rule.probability
        self.radii = np.zeros(n)
        for symbol in self._recursive_core():
            if self.radii[symbol] == 0 and self._reached[symbol, symbol]:
                part = np.flatnonzero(self._reached[symbol] & self._reached[:, symbol])
                self.radii[part] = max(abs(np.linalg.eigvals(self.mean_matrix[np.ix_(part, part)])))

    def _recursive_core(self) -> list[int]:
        """Symbols that reach a symbol which derives itself: what is left when those that reach none are taken away."""
        left = np.ones(len(self.mean_matrix), dtype=bool)
        edges = self.mean_matrix > 0
        while (done := left & ~(edges & left).any(axis=1)).any():
            left &= ~done
        return np.flatnonzero(left).tolist()

    @cached_property
    def _reached(self) -> NDArray[np.bool_]:
        """(N, N) whether a derivation from the row can hold the column, below its root."""
        reached = self.mean_matrix > 0
        for middle in range(len(reached)):
            reached |= np.outer(reached[:, middle], reached[middle])
        return reached

    @property
    def spectral_radius(self) -> float:
        """Of the mean matrix: below 1 all means are finite, above 1 mass is lost."""
        return float(self.radii.max())

    @property
    def recursive(self) -> bool:
        return bool(self.radii.any())

    def _somewhere(self, at: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """(N,) whether a symbol is or reaches one that is marked."""
        if not at.any():
            return at
        return at | (self._reached & at).any(axis=1)

    def masses(self) -> FloatArray:
        """(N,) probability that a derivation from each symbol ends."""
        masses = np.ones(len(self.radii))
        improper = set(np.flatnonzero(self._somewhere(self.radii > 1 + CRITICAL)).tolist())
        if improper:
            equations: list[Equation[complex]] = [
                Equation(self._index[left], rule.probability, tuple(i for i in children if i in improper))
                for left, rules in self.grammar.rules.items()
                for rule in rules
                if self._index[left] in improper
                for children in [[self._index[symbol] for symbol in rule.right]]
            ]
            for symbol, mass in NUMBERS.solve(equations).items():
                masses[symbol] = complex(mass).real
        return masses

    def expected(self, cost: FloatArray) -> FloatArray:
        """(N,) mean of the sum of `cost` (N,) over the nonterminals of a derivation; infinite where it has none."""
        costs = self._somewhere(cost > 0)
        endless = self._somewhere((self.radii > 1 - _ENDLESS) & costs)
        finite = np.flatnonzero(costs & ~endless)
        result = np.where(endless, math.inf, 0.0)
        matrix = self.mean_matrix[np.ix_(finite, finite)]
        result[finite] = np.linalg.solve(np.eye(len(finite)) - matrix, cost[finite])
        return result

    def mean_lengths(self) -> FloatArray:
        """(N,) words of a yield."""
        rules = self.grammar.rules.values()
        return self.expected(
            np.array([math.fsum(r.probability * sum(isinstance(s, str) for s in r.right) for r in g) for g in rules])
        )

    def length_variances(self) -> FloatArray:
        """(N,) By the law of total variance: of the rule, and within it that of the parts."""
        means = self.mean_lengths()
        if not np.isfinite(means).all():
            return np.full(len(means), math.inf)
        cost = [
            math.fsum(
                r.probability
                * (math.fsum(1.0 if isinstance(s, str) else means[self._index[s]] for s in r.right) - mean) ** 2
                for r in rules
            )
            for mean, rules in zip(means, self.grammar.rules.values(), strict=True)
        ]
        return self.expected(np.array(cost))

    def derivation_entropies(self) -> FloatArray:
        """(N,) entropy of a derivation, in nats (Grenander 1967): the expected sum of the entropies of its choices."""
        rules = self.grammar.rules.values()
        return self.expected(
            np.array([math.fsum(-r.probability * math.log(r.probability) for r in g) + 0.0 for g in rules])
        )

    def conditioned(self) -> Grammar:
        """The grammar of the same derivations given that they end: proper, and the same if this one is (Chi 1999)."""
        masses = self.masses()
        if (masses == 1).all():
            return self.grammar
        return Grammar(
            [
                Rule(
                    left,
                    rule.right,
                    rule.probability
                    * math.prod(masses[self._index[s]] for s in rule.right if isinstance(s, Nonterminal))
                    / masses[self._index[left]],
                )
                for left, rules in self.grammar.rules.items()
                for rule in rules
            ],
            self.grammar.start.name,
        )
