"""From a grammar to the compiled loops and back: sentences as arrays of word indices.

Axes: N nonterminals, V words, S states of the normal form, L length of a sentence in words.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

import numpy as np

from grammarlab.language import earley, sampler
from grammarlab.language.earley import BEST, COUNT, LOG, REAL, Chart, Floats, Ints, Tables
from grammarlab.language.grammar import Grammar
from grammarlab.language.lengths import Series
from grammarlab.language.normal_form import BEST as BEST_WEIGHTS
from grammarlab.language.normal_form import (
    NUMBERS,
    ONE_OR_MORE,
    NormalForm,
    Semiring,
    normal_form,
    shortest_yields,
    symbol_index,
)
from grammarlab.language.sampler import Keys, Rules

# Words that a thread should have to do, so that starting it pays.
_WORDS_A_THREAD = 20_000

Rows = list[list[tuple[float, ...]]]  # entries (index, …, weight) of each row


# Words of a yield that no sentence will be drawn with.
_LONG = 2**40


class Engine:
    """Exact probabilities of a proper grammar (every derivation ends), one sentence or many at a time."""

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar
        index = symbol_index(grammar)
        self._words = {word: index[word] - len(grammar.rules) for word in grammar.terminals}

    def indices(self, sentence: Sequence[str]) -> Ints:
        """(L,) the place of each word in the grammar's list; -1 for a word that it lacks."""
        return np.array([self._words.get(word, -1) for word in sentence], dtype=np.int64)

    def log_probs(self, sentences: Sequence[Sequence[str]]) -> Floats:
        """(n,) natural log of each sentence's probability, on all cores if there is much to do."""
        lengths = np.array([len(sentence) for sentence in sentences], dtype=np.int64)
        words = self.indices([word for sentence in sentences for word in sentence])
        return self.log_probs_of(words, np.cumsum(lengths))

    def log_probs_of(self, words: Ints, ends: Ints) -> Floats:
        """(n,) the same of sentences that stand one after the other as word indices, sentence i before `ends[i]`."""
        return self._over(words, ends, lambda words, ends: earley.values(self.real, REAL, self.log, words, ends))

    def rows(self, sentence: Sequence[str]) -> Floats:
        """(L + 1, V + 1) distribution of what comes after each prefix; 0 where it is impossible."""
        return self.chart(sentence).rows

    def ambiguous(self, words: Ints, ends: Ints) -> np.ndarray:
        """(n,) whether a sentence has more than one derivation; sentences as in `log_probs_of`."""
        return self._over(words, ends, lambda words, ends: earley.values(self.count, COUNT, self.log, words, ends)) > 1

    def _over(self, words: Ints, ends: Ints, work: Callable[[Ints, Ints], Floats]) -> Floats:
        threads = min(len(os.sched_getaffinity(0)), 1 + len(words) // _WORDS_A_THREAD)
        if threads == 1:
            return work(words, ends)
        # Many more parts than threads: the work of a sentence is not known before.
        bounds = np.searchsorted(ends, np.linspace(0, len(words), 8 * threads + 1)[1:-1])
        parts = [part for part in np.split(np.arange(len(ends)), bounds) if len(part)]
        with ThreadPoolExecutor(threads) as pool:
            return np.concatenate(list(pool.map(lambda part: _part(work, words, ends, part), parts)))

    def chart(self, sentence: Sequence[str]) -> Chart:
        """The chart whose rows are the distributions of the next word after each prefix."""
        words = self.indices(sentence)
        chart = earley.forward(self.real, REAL, words, True)
        return chart if chart.exact else earley.forward(self.log, LOG, words, True)

    def best(self, sentence: Sequence[str]) -> Chart:
        """The chart of the best derivations, every span recorded; its value is the log-probability of the best."""
        return earley.forward(self._best, BEST, self.indices(sentence), False)

    def spans(self, sentence: Sequence[str]) -> Chart:
        """The chart with every span that can be complete."""
        return earley.forward(self.count, COUNT, self.indices(sentence), False)

    def draw(self, keys: Keys, max_length: int = -1) -> tuple[Ints, Ints, Floats]:
        """See `sampler.draw`."""
        return sampler.draw(self._rules, keys, max_length)

    # ---- tables ----

    @cached_property
    def form(self) -> NormalForm[float]:
        return normal_form(self.grammar, float, NUMBERS)  # type: ignore[arg-type]  # real weights stay real

    @cached_property
    def real(self) -> Tables:
        return self._tables(self.form, NUMBERS, lambda array: array)  # type: ignore[arg-type]

    @cached_property
    def log(self) -> Tables:
        return self._tables(self.form, NUMBERS, _log)  # type: ignore[arg-type]

    @cached_property
    def _best(self) -> Tables:
        return self._tables(normal_form(self.grammar, float, BEST_WEIGHTS), BEST_WEIGHTS, _log)

    @cached_property
    def count(self) -> Tables:
        form = normal_form(self.grammar, lambda _: 1.0, ONE_OR_MORE)
        return self._tables(form, ONE_OR_MORE, lambda array: array)

    @cached_property
    def _reach(self) -> tuple[Floats, Floats]:
        """(N, N) and (N, V): expected times that a nonterminal, or the probability that a word, comes first.

        Of the left corners of a derivation from each nonterminal whose yield is not empty. A state is worth the
        probability that its first symbol is not empty.
        """
        form = self.form
        n = form.n_symbols
        filled = 1 - np.array([form.empty.get(symbol, 0.0) for symbol in range(n)] + [0.0] * form.n_words)
        worth = [*filled[form.waits], 1.0]  # the last for COMPLETE
        corners, words = np.zeros((n, n)), np.zeros((n, form.n_words))
        for left, first, target, weight in form.corners:
            place, column = (corners, first) if first < n else (words, first - n)
            place[left, column] += weight * worth[target]
        units = np.zeros((n, n))
        for (upper, lower), weight in form.units.items():
            units[upper, lower] = weight
        below = units @ np.linalg.inv(np.eye(n) - corners @ units)
        return below, below @ words

    @cached_property
    def _rules(self) -> Rules:
        index = symbol_index(self.grammar)
        groups = list(self.grammar.rules.values())
        rights = [[index[symbol] for symbol in rule.right] for rules in groups for rule in rules]
        shortest = self.shortest
        return Rules(
            index[self.grammar.start],
            len(groups),
            np.cumsum([0, *map(len, groups)], dtype=np.int64),
            np.concatenate([_cumulative([rule.probability for rule in rules]) for rules in groups]),
            np.log([rule.probability for rules in groups for rule in rules]),
            np.cumsum([0, *map(len, rights)], dtype=np.int64),
            np.array([symbol for right in rights for symbol in right], dtype=np.int64),
            shortest,
            np.array([min(shortest[right].sum(), _LONG) for right in rights], dtype=np.int64),
        )

    @cached_property
    def shortest(self) -> Ints:
        """(N + V,) words of the shortest yield of each symbol."""
        nonterminals = [min(words, _LONG) for words in shortest_yields(self.grammar)]
        return np.array([*nonterminals, *[1] * len(self.grammar.terminals)], dtype=np.int64)

    def series(self, form: NormalForm[Any], kind: type = float) -> Series:
        """The normal form by left sides; of this grammar's rules, with whatever weights, of the given kind."""
        corners: list[list[tuple[complex, ...]]] = [[] for _ in range(form.n_symbols)]
        units: list[list[tuple[complex, ...]]] = [[] for _ in range(form.n_symbols)]
        for left, *entry in form.corners:
            corners[left].append(tuple(entry))
        for (upper, lower), weight in form.units.items():
            units[upper].append((lower, weight))
        return Series(
            form.start,
            form.n_symbols,
            np.array(form.waits, dtype=np.int64),
            *_lists(form.advances, 2, kind),
            *_lists(corners, 3, kind),
            *_lists(units, 2, kind),
        )

    def _tables(
        self, form: NormalForm[float], semiring: Semiring[float], convert: Callable[[Floats], Floats]
    ) -> Tables:
        n = form.n_symbols
        scans: Rows = [[] for _ in range(form.n_words)]
        above: Rows = [[] for _ in range(n)]
        corners: list[dict[tuple[int, int], float]] = [{} for _ in range(n)]
        lowers: dict[int, list[tuple[int, float]]] = {}
        for (upper, lower), weight in form.units.items():
            above[lower].append((upper, weight))
            lowers.setdefault(upper, []).append((lower, weight))
        for left, first, target, weight in form.corners:
            if first >= n:
                scans[first - n].append((left, target, weight))
                continue
            for lower, unit in lowers[first]:
                total = semiring.mul(unit, weight)
                old = corners[lower].get((left, target))
                corners[lower][left, target] = total if old is None else semiring.add(old, total)
        # Whatever the arithmetic, what can follow is what has a probability to.
        reach = [matrix if form is self.form else (matrix > 0).astype(float) for matrix in self._reach]
        arrays: list[Any] = [
            *_lists(form.advances, 2),
            *_lists(scans, 3),
            *_lists([[(*key, weight) for key, weight in row.items()] for row in corners], 3),
            *_lists(above, 2),
            *(array for matrix in reach for array in _lists([_entries(row) for row in matrix], 2)),
        ]
        arrays = [convert(array) if array.dtype == np.float64 else array for array in arrays]
        return Tables(
            form.start,
            n,
            form.n_words,
            float(convert(np.array([form.empty.get(form.start, 0.0)]))[0]),
            np.array(form.lefts, dtype=np.int64),
            np.array(form.waits, dtype=np.int64),
            *arrays,
        )


def _part(work: Callable[[Ints, Ints], Floats], words: Ints, ends: Ints, part: Ints) -> Floats:
    start = ends[part[0] - 1] if part[0] else 0
    return work(words[start : ends[part[-1]]], ends[part] - start)


def _log(array: Floats) -> Floats:
    with np.errstate(divide="ignore"):
        return np.log(array)


def _entries(row: Floats) -> list[tuple[float, ...]]:
    return [(int(i), float(row[i])) for i in np.flatnonzero(row)]


def _cumulative(probabilities: Sequence[float]) -> Floats:
    """Ending in 1 exactly, so that every number below 1 falls on a rule."""
    bounds = np.cumsum(probabilities)
    bounds[-1] = 1.0
    return bounds


def _lists(rows: Sequence[Sequence[tuple[complex, ...]]], width: int, kind: type = float) -> list[np.ndarray]:
    """The bounds of the rows in one array of all entries, then that array column by column, weights last."""
    flat = [entry for row in rows for entry in row]
    return [
        np.cumsum([0, *map(len, rows)], dtype=np.int64),
        *(np.array([entry[i] for entry in flat], dtype=np.int64) for i in range(width - 1)),
        np.array([entry[-1] for entry in flat], dtype=kind),
    ]
