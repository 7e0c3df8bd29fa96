"""What every language answers, whatever stands behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Sentence = tuple[str, ...]
FloatArray = NDArray[np.float64]
IndexArray = NDArray[np.int64]

# Up to how many derivations a language is written out when nothing else is said.
ENUMERATION_LIMIT = 100_000


def as_sentence(words: Sequence[str]) -> Sentence:
    """Raises `TypeError` for a string, whose letters would pass for words."""
    if isinstance(words, str):
        raise TypeError(f"{words!r}: a sentence is a tuple of words; split the string first")
    return tuple(words)


def padded(words: IndexArray, ends: IndexArray) -> IndexArray:
    """(n, longest) rows from sentences that stand one after the other, sentence i before `ends[i]`; -1 behind each."""
    lengths = np.diff(ends, prepend=0)
    rows = np.full((len(ends), lengths.max(initial=0)), -1, dtype=np.int64)
    rows[np.arange(rows.shape[1]) < lengths[:, None]] = words
    return rows


class NotEnumerableError(ValueError):
    """The language has more sentences than the caller allows to write out."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number about a language: exact, or an estimate with its standard error."""

    value: float
    stderr: float | None = None

    @property
    def exact(self) -> bool:
        return self.stderr is None


class Language(Protocol):
    """A probability distribution over sentences, known exactly. A sentence is a tuple of words; logs are natural."""

    @property
    def terminals(self) -> tuple[str, ...]:
        """The words, in a fixed order."""

    @property
    def mass(self) -> float:
        """The share of the language that this one was truncated from; 1 for one that was not."""

    def sample(self, n: int, rng: np.random.Generator) -> list[Sentence]:
        """`n` independent sentences, drawn exactly: no depth cut, no length cut."""

    def sample_indices(self, n: int, rng: np.random.Generator) -> IndexArray:
        """(n, longest) the same sentences as `sample` draws, as places in `terminals`; -1 behind the end."""

    def log_prob(self, sentences: Sequence[Sentence]) -> FloatArray:
        """(n,) natural log of each sentence's probability summed over its parses; −inf where it has none."""

    def next_token_probs(self, sentence: Sentence) -> FloatArray:
        """(len + 1, V + 1) distribution after each prefix, over `terminals` and, last, the end of the sentence.

        A row sums to 1 where the prefix is possible; where it is not, nothing can follow and the row is 0.
        """

    def entropy(self) -> Quantity:
        """Entropy of the sentence, in nats (of the string, not of its derivation)."""

    def mean_length(self) -> Quantity:
        """Expected number of words of a sentence, the end not counted."""

    def max_length(self) -> float:
        """Number of words of the longest sentence, or infinity."""

    def size(self, limit: int = ENUMERATION_LIMIT) -> float:
        """Number of sentences, or infinity. Raises `NotEnumerableError` where it cannot be counted within `limit`."""

    def enumerate(self, limit: int = ENUMERATION_LIMIT) -> list[tuple[Sentence, float]]:
        """All sentences with their probabilities, most probable first, ties in the order of the words.

        Raises `NotEnumerableError` for a language of more than `limit` derivations.
        """

    def truncated(self, max_length: int) -> Language:
        """The same language given that a sentence has at most `max_length` words, renormalised exactly.

        Raises `ValueError` if it has no such sentence.
        """
