"""A finite language written out: each sentence with its probability. Everything is a sum over the table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from grammarlab.language.protocol import (
    ENUMERATION_LIMIT,
    FloatArray,
    IndexArray,
    NotEnumerableError,
    Quantity,
    Sentence,
    as_sentence,
    padded,
)


class SentenceTable:
    """The finite language with the given sentences and probabilities.

    `mass` is the share of a larger language that the table keeps (see `truncated`); probabilities are renormalised.
    Raises `ValueError` for a table without mass.
    """

    def __init__(self, terminals: Sequence[str], probabilities: Mapping[Sentence, float], mass: float = 1.0) -> None:
        total = math.fsum(probabilities.values())
        if not total > 0:
            raise ValueError("a language needs a sentence of positive probability")
        self.terminals = tuple(terminals)
        self.mass = mass
        rank = {word: index for index, word in enumerate(self.terminals)}
        rows = sorted(probabilities.items(), key=lambda row: (-row[1], [rank[word] for word in row[0]]))
        self._sentences = [sentence for sentence, _ in rows]
        self._probs = np.array([prob / total for _, prob in rows])
        self._cumulative = np.cumsum(self._probs)
        self._index = {sentence: index for index, sentence in enumerate(self._sentences)}
        self._column = rank
        self._prefix_mass: dict[Sentence, float] = {}  # P(a sentence begins with the prefix)
        self._successors: dict[Sentence, list[str]] = {}
        for sentence, prob in zip(self._sentences, self._probs, strict=True):
            for length in range(len(sentence) + 1):
                prefix = sentence[:length]
                if prefix not in self._prefix_mass:
                    self._prefix_mass[prefix] = 0.0
                    self._successors[prefix] = []
                    if length:
                        self._successors[prefix[:-1]].append(prefix[-1])
                self._prefix_mass[prefix] += float(prob)

    def sample(self, n: int, rng: np.random.Generator) -> list[Sentence]:
        return [self._sentences[index] for index in self._draw(n, rng)]

    def sample_indices(self, n: int, rng: np.random.Generator) -> IndexArray:
        drawn = self._draw(n, rng)
        rows, lengths = self._rows
        return rows[drawn, : lengths[drawn].max(initial=0)]

    def _draw(self, n: int, rng: np.random.Generator) -> IndexArray:
        return np.searchsorted(self._cumulative, rng.random(n) * self._cumulative[-1], side="right")

    @cached_property
    def _rows(self) -> tuple[IndexArray, IndexArray]:
        """All sentences as rows of word indices, -1 behind the end, and their lengths."""
        lengths = np.array([len(sentence) for sentence in self._sentences], dtype=np.int64)
        words = np.array([self._column[word] for sentence in self._sentences for word in sentence], dtype=np.int64)
        return padded(words, np.cumsum(lengths)), lengths

    def log_prob(self, sentences: Sequence[Sentence]) -> FloatArray:
        probs = np.array([self._prob(as_sentence(sentence)) for sentence in sentences], dtype=np.float64)
        with np.errstate(divide="ignore"):
            return np.log(probs)

    def next_token_probs(self, sentence: Sentence) -> FloatArray:
        sentence = as_sentence(sentence)
        rows = np.zeros((len(sentence) + 1, len(self.terminals) + 1))
        for length in range(len(sentence) + 1):
            prefix = sentence[:length]
            for word in self._successors.get(prefix, ()):
                rows[length, self._column[word]] = self._prefix_mass[(*prefix, word)]
            rows[length, -1] = self._prob(prefix)
            if (total := rows[length].sum()) > 0:
                rows[length] /= total
        return rows

    def entropy(self) -> Quantity:
        return Quantity(math.fsum(-p * math.log(p) for p in self._probs if p > 0) + 0.0)  # no -0

    def mean_length(self) -> Quantity:
        return Quantity(math.fsum(p * len(s) for p, s in zip(self._probs, self._sentences, strict=True)))

    def max_length(self) -> int:
        return max(len(sentence) for sentence in self._sentences)

    def size(self, limit: int = ENUMERATION_LIMIT) -> int:
        return len(self._sentences)

    def enumerate(self, limit: int = ENUMERATION_LIMIT) -> list[tuple[Sentence, float]]:
        if len(self._sentences) > limit:
            raise NotEnumerableError(f"the language has {len(self._sentences)} sentences, more than {limit}")
        return [(sentence, float(prob)) for sentence, prob in zip(self._sentences, self._probs, strict=True)]

    def truncated(self, max_length: int) -> SentenceTable:
        if self.max_length() <= max_length:
            return self
        kept = {s: float(p) for s, p in zip(self._sentences, self._probs, strict=True) if len(s) <= max_length}
        if not kept:
            shortest = min(len(sentence) for sentence in self._sentences)
            raise ValueError(f"no sentence has at most {max_length} words; the shortest has {shortest}")
        return SentenceTable(self.terminals, kept, mass=self.mass * math.fsum(kept.values()))

    def _prob(self, sentence: Sentence) -> float:
        index = self._index.get(sentence)
        return 0.0 if index is None else float(self._probs[index])
