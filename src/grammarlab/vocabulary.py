"""Words to ids and back. The one place that knows which id is which."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from grammarlab.language import BEGIN, END, PAD, SPECIAL_TOKENS, Sentence

IdArray = NDArray[np.int64]


class Vocabulary:
    """pad, begin, end, then the language's words in its order.

    A sentence as ids is `begin word … word end`; rows of one array are padded on the right.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.tokens = (*SPECIAL_TOKENS, *words)
        self._ids = {token: index for index, token in enumerate(self.tokens)}
        if len(self._ids) != len(self.tokens):
            raise ValueError("the words of a vocabulary must differ from each other and from the special tokens")
        self.pad_id, self.begin_id, self.end_id = (self._ids[token] for token in (PAD, BEGIN, END))
        # Ids in the order of `Language.next_token_probs`: the words, then end.
        self.column_ids = np.array([*(self._ids[word] for word in words), self.end_id], dtype=np.int64)

    def __len__(self) -> int:
        return len(self.tokens)

    def encode(self, sentences: Sequence[Sentence]) -> IdArray:
        """(B, longest + 2) ids, begin and end included. Raises `ValueError` naming an unknown word."""
        longest = max((len(sentence) for sentence in sentences), default=0)
        rows = np.full((len(sentences), longest + 2), self.pad_id, dtype=np.int64)
        for row, sentence in zip(rows, sentences, strict=True):
            row[0] = self.begin_id
            row[1 : len(sentence) + 1] = self.word_ids(sentence)
            row[len(sentence) + 1] = self.end_id
        return rows

    def encode_indices(self, indices: IdArray) -> IdArray:
        """(B, L) places in the language's list of words, -1 behind the end, to (B, L + 2) ids as `encode` gives."""
        rows = np.full((len(indices), indices.shape[1] + 2), self.pad_id, dtype=np.int64)
        rows[:, 0] = self.begin_id
        rows[:, 1:-1] = np.where(indices >= 0, indices + len(SPECIAL_TOKENS), self.pad_id)
        rows[np.arange(len(rows)), (indices >= 0).sum(1) + 1] = self.end_id
        return rows

    def word_ids(self, words: Sequence[str]) -> list[int]:
        """Raises `ValueError` naming an unknown word."""
        for word in words:
            if word not in self._ids or word in SPECIAL_TOKENS:
                known = ", ".join(self.tokens[len(SPECIAL_TOKENS) :][:20])
                raise ValueError(f"unknown word {word!r}; the language has {known}")
        return [self._ids[word] for word in words]

    def decode(self, row: Sequence[int]) -> Sentence:
        """The words of one row: what stands before the first end or pad, begin left out."""
        words: list[str] = []
        for index in row:
            if index in (self.end_id, self.pad_id):
                break
            if index != self.begin_id:
                words.append(self.tokens[index])
        return tuple(words)
