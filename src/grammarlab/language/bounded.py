"""A grammar's language given that a sentence has at most so many words."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from grammarlab.language import lengths
from grammarlab.language.earley import LOG, Floats, Ints
from grammarlab.language.engine import Engine
from grammarlab.language.lengths import Laws, Series
from grammarlab.language.normal_form import NUMBERS, normal_form
from grammarlab.language.sampler import Keys

# Above this share of sentences within the limit, drawing until one is within it is faster than drawing within it.
REJECTION = 0.05

# A limit that is felt with less probability than this changes no digit of a distribution.
_UNFELT = 1e-18

# Up to this greatest length of a finite language it is worth knowing where its limit is not felt.
_LONGEST_TILTED = 4_096

_STEP = 1e-30  # of the complex step


class Bounded:
    """Sums, sentences and distributions given at most `length` words."""

    def __init__(self, engine: Engine, length: int, longest: float = math.inf) -> None:
        if length < 0 or length != int(length):
            raise ValueError(f"{length}: a length must be at least 0, and whole")
        self.engine, self.length, self._longest = engine, int(length), longest
        self._series: Series = engine.series(engine.form)
        self._laws: Laws = lengths.laws(self._series, length)
        self.law = np.array(self._laws.symbols[self._series.start])  # P(words = n), not renormalised
        self.law[0] = engine.form.empty.get(engine.form.start, 0.0)
        self.mass = math.fsum(self.law)

    def derivation_entropy(self) -> float:
        """Entropy of a derivation given the limit, in nats."""
        form = normal_form(
            self.engine.grammar, lambda p: complex(p, _STEP * p * math.log(p) if p < 1 else 0.0), NUMBERS
        )
        series = self.engine.series(form, complex)
        law = lengths.laws(series, self.length).symbols[series.start]
        law[0] = form.empty.get(form.start, 0.0)
        p_log_p = math.fsum(law.imag / _STEP)  # Σ p log p over the derivations within the limit
        return max(0.0, math.log(self.mass) - p_log_p / self.mass)

    def derivations(self) -> float:
        """Number of derivations within the limit, without empty and unit rules: at least that of sentences."""
        with np.errstate(over="ignore"):
            total = float(self._counts(float).sum())
        return total if math.isfinite(total) else math.inf  # beyond any float

    def sizes(self) -> list[int]:
        """Number of those derivations of each length, exactly."""
        counts = self._counts(float)
        if not counts.max() < 2**53:  # no float holds them all: the same loops over Python's whole numbers
            counts = self._counts(object)
        return [int(count) for count in counts]

    def _counts(self, kind: type) -> np.ndarray:
        one = 1 if kind is object else 1.0
        units = {key: one for key in self.engine.form.units}
        form = dataclasses.replace(
            self.engine.form,
            advances=[[(target, one) for target, _ in row] for row in self.engine.form.advances],
            corners=[corner._replace(weight=one) for corner in self.engine.form.corners],
            units=units,
        )
        series = self.engine.series(form, kind)
        laws = lengths.laws.py_func if kind is object else lengths.laws
        with np.errstate(over="ignore", invalid="ignore"):
            counts = laws(series, self.length).symbols[series.start]
        counts[0] = int(form.start in form.empty)
        return counts

    def draw(self, keys: Keys) -> tuple[Ints, Ints, Floats | None]:
        """Words and bounds of a sentence for each key; log p of its derivation, without the limit, if one was drawn."""
        if self.mass > REJECTION:
            return self.engine.draw(keys, self.length)
        return *lengths.draw(self._series, self._laws, np.cumsum(self.law), keys), None

    def rows(self, sentence: Sequence[str]) -> Floats:
        """(len + 1, V + 1) distribution after each prefix, given the limit; 0 where it is impossible."""
        chart = self.engine.chart(sentence)
        lefts = np.array(self.engine.form.lefts, dtype=np.int64)
        own = chart.begun[chart.item_start, lefts[chart.item_state]]
        logs = chart.arithmetic == LOG
        begun = np.exp(chart.begun) if logs else chart.begun
        share = np.exp(chart.item_value + own) if logs else chart.item_value * own
        items: tuple[Any, ...] = (chart.item_ptr, chart.item_start, chart.item_state, share, begun)
        if self._tilted and lengths.tail_bound(self._series, self.length, *self._tilted, lefts, *items) < _UNFELT:
            return chart.rows
        return lengths.bounded_rows(self._series, self._laws, lefts, chart.rows, *items)

    @cached_property
    def _tilted(self) -> tuple[float, Floats, Floats, Floats] | None:
        """The x for which the bound on a sentence's length is least, and the power series there; None if infinite."""
        series, longest = self._series, self._longest
        if longest > _LONGEST_TILTED:
            return None
        laws = lengths.laws(series, int(longest))
        powers = np.arange(longest + 1)
        x = np.exp(np.linspace(0.001, 2, 400))
        with np.errstate(over="ignore"):  # what overflows is not the least
            bounds = np.log((x[:, None] ** powers) @ laws.symbols[series.start]) - (self.length + 1) * np.log(x)
        best = float(x[np.argmin(bounds)])
        at = best**powers
        states = [*(laws.states @ at), 1.0]  # the last for a rest of nothing
        form = self.engine.form
        units, corners = np.zeros((2, form.n_symbols, form.n_symbols))
        for (upper, lower), weight in form.units.items():
            units[upper, lower] = weight
        for left, first, target, weight in form.corners:
            if first < form.n_symbols:
                corners[left, first] += weight * states[target]
        below = units @ np.linalg.inv(np.eye(form.n_symbols) - corners @ units)
        return best, laws.symbols @ at, laws.after @ at, below
