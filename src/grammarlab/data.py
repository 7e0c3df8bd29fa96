"""Sentences to batches, in an order that depends on the seed and the epoch alone.

Every draw has its own random stream, keyed by the seed and what it is for: a change of batch size, model or logging
changes no sentence.

Axes: B batch, L longest sentence of a batch in words. Rows are `begin word … word end`, (B, L + 2), padded right.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import lightning.pytorch as pl
import numpy as np
import torch
from torch import Tensor

from grammarlab.config import ConfigError, DataConfig
from grammarlab.language import Language, NotEnumerableError, Sentence
from grammarlab.streams import Stream, stream
from grammarlab.vocabulary import Vocabulary

# Steps that make an epoch where every step draws fresh sentences.
FRESH_EPOCH = 1_000


class ScoredBatch(NamedTuple):
    """Sentences beside the natural log of their probability under the language."""

    rows: Tensor  # (B, L + 2)
    log_probs: Tensor  # (B,) float64


class Holdout:
    """The sentences that training never shows: those whose hash, keyed by the seed, is lowest.

    Where the language can be written out, exactly `round(share · size)` of them; else each with probability `share`.
    Raises `ConfigError` where that would be none or all of the language.
    """

    def __init__(self, language: Language, share: float, seed: int) -> None:
        self._seed = seed
        self.sentences: frozenset[Sentence] | None = None
        self._threshold = share
        if share == 0:
            return
        try:
            listed = language.enumerate()
        except NotEnumerableError:
            return
        sentences = [sentence for sentence, _ in listed]
        count = round(share * len(sentences))
        if not 0 < count < len(sentences):
            raise ConfigError(
                f"data.holdout={share:g}: holds out {count} of the language's {len(sentences)} sentences; "
                f"at least one must be held out and one must stay"
            )
        self.sentences = frozenset(sorted(sentences, key=self._hash)[:count])
        kept = math.fsum(probability for sentence, probability in listed if sentence not in self.sentences)
        if kept < 1e-3:
            raise ConfigError(f"data.holdout={share:g}: what stays has {kept:.2g} of the probability: too little")

    def __contains__(self, sentence: object) -> bool:
        assert isinstance(sentence, tuple)
        if self.sentences is not None:
            return sentence in self.sentences
        return self._hash(sentence) < self._threshold

    def _hash(self, sentence: Sentence) -> float:
        """Uniform on [0, 1), the same in every process."""
        key = self._seed.to_bytes(8, "big")
        digest = hashlib.blake2b("\n".join(sentence).encode(), key=key, digest_size=6).digest()
        return int.from_bytes(digest, "big") / 2**48


class ShuffledBatches:
    """Batches of a fixed set, each row once an epoch; the last batch may be smaller.

    Lightning saves and restores it through `state_dict`, also in the middle of an epoch.
    """

    def __init__(self, rows: Tensor, batch_size: int, seed: int) -> None:
        self.rows, self.batch_size, self.seed = rows, batch_size, seed
        self.epoch, self.batch = 0, 0  # of the next batch

    def __len__(self) -> int:
        return math.ceil(len(self.rows) / self.batch_size)

    def __iter__(self) -> Iterator[Tensor]:
        order = torch.from_numpy(stream(self.seed, Stream.order, self.epoch).permutation(len(self.rows)))
        for batch in range(self.batch, len(self)):
            self._advance()
            yield self.rows[order[batch * self.batch_size : (batch + 1) * self.batch_size]]

    def _advance(self) -> None:
        self.batch += 1
        if self.batch == len(self):
            self.epoch, self.batch = self.epoch + 1, 0

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "batch": self.batch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.batch = state["epoch"], state["batch"]


class FreshBatches:
    """New sentences at every step: step n draws from the stream (seed, n)."""

    def __init__(self, draw: SentenceSource, batch_size: int, seed: int) -> None:
        self.draw, self.batch_size, self.seed = draw, batch_size, seed
        self.step = 0  # of the next batch

    def __len__(self) -> int:
        return FRESH_EPOCH

    def __iter__(self) -> Iterator[Tensor]:
        while True:
            rng = stream(self.seed, Stream.fresh, self.step)
            self.step += 1
            yield self.draw.rows(self.batch_size, rng)
            if self.step % FRESH_EPOCH == 0:
                return

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step = state["step"]


class ScoredBatches:
    """A fixed list of batches. Not a plain list: Lightning takes that for several loaders."""

    def __init__(self, batches: Sequence[ScoredBatch]) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[ScoredBatch]:
        return iter(self._batches)


class SentenceSource:
    """Sentences of a language that are not held out, as rows of ids."""

    def __init__(self, language: Language, vocabulary: Vocabulary, holdout: Holdout | None = None) -> None:
        self.language, self.vocabulary, self.holdout = language, vocabulary, holdout

    def sentences(self, n: int, rng: np.random.Generator) -> list[Sentence]:
        kept: list[Sentence] = []
        while len(kept) < n:  # rejection: exact, and what stays has been seen to have some probability
            drawn = self.language.sample(n - len(kept), rng)
            kept += drawn if self.holdout is None else [s for s in drawn if s not in self.holdout]
        return kept

    def rows(self, n: int, rng: np.random.Generator) -> Tensor:
        if self.holdout is None:  # without words on the way: training on fresh sentences must not wait for them
            return torch.from_numpy(self.vocabulary.encode_indices(self.language.sample_indices(n, rng)))
        return torch.from_numpy(self.vocabulary.encode(self.sentences(n, rng)))


class LanguageData(pl.LightningDataModule):
    """Training, validation and test sentences of one language.

    Training leaves out the held-out sentences; validation and test are drawn from the whole language and carry its
    log-probabilities.
    """

    def __init__(self, language: Language, vocabulary: Vocabulary, config: DataConfig, seed: int) -> None:
        super().__init__()
        self.language, self.vocabulary, self.config, self.seed = language, vocabulary, config, seed
        self.holdout = Holdout(language, config.holdout, seed) if config.holdout else None

    def train_dataloader(self) -> ShuffledBatches | FreshBatches:
        source = SentenceSource(self.language, self.vocabulary, self.holdout)
        if self.config.train_size is None:
            return FreshBatches(source, self.config.batch_size, self.seed)
        rows = source.rows(self.config.train_size, stream(self.seed, Stream.train))
        return ShuffledBatches(rows, self.config.batch_size, self.seed)

    def val_dataloader(self) -> ScoredBatches:
        return self._scored(self.config.validation_size, Stream.validation)

    def test_dataloader(self) -> ScoredBatches:
        return self._scored(self.config.test_size, Stream.test)

    def _scored(self, n: int, purpose: Stream) -> ScoredBatches:
        sentences = SentenceSource(self.language, self.vocabulary).sentences(n, stream(self.seed, purpose))
        size = self.config.batch_size
        return ScoredBatches([self._score(sentences[start : start + size]) for start in range(0, n, size)])

    def _score(self, sentences: Sequence[Sentence]) -> ScoredBatch:
        rows = torch.from_numpy(self.vocabulary.encode(sentences))
        return ScoredBatch(rows, torch.from_numpy(self.language.log_prob(sentences)))
