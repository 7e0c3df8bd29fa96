"""One token of every row through a causal decoder with its cache, on the CPU, in compiled loops.

The same function as `Decoder` with a cache and one new token, for every option of the family. In torch such a step is
some twenty small operations a layer, whose starting costs more than their work. Few rows go through one compiled
function (`few`); many through torch's products of matrices with compiled loops between them (`many`).

Axes: B batch, C width, H heads, K heads of keys and values, D head width, F feed-forward width, V vocabulary,
N context.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from grammarlab.cache import KVCache
from grammarlab.compiled import few, many
from grammarlab.compiled.functions import Array, likeliest
from grammarlab.compiled.weights import options_of, weights_of
from grammarlab.model import CACHE_NEEDS_CAUSAL, Decoder

__all__ = ["Step", "likeliest", "supports"]

FEW = 15  # rows up to which `few` is used


def supports(model: Decoder) -> bool:
    """Whether a step here is the model's own: not where torch computes in other numbers than its weights'."""
    weight = model.token_embedding.weight
    exact = weight.dtype in (torch.float32, torch.float64) and not torch.is_autocast_enabled("cpu")
    return model.config.causal and weight.device.type == "cpu" and exact


class Step:
    """The next token of B rows that go on in step, for up to `capacity` tokens.

    It reads the model's weights where they lie, without dropout. Raises `ValueError` for a model that is not causal.
    """

    def __init__(self, model: Decoder, batch: int, capacity: int) -> None:
        config = model.config
        if not config.causal:
            raise ValueError(CACHE_NEEDS_CAUSAL)
        self.length = 0
        self.capacity = min(capacity, config.context)
        self.slots = self.capacity if config.window is None else min(self.capacity, config.window)
        self._weights, self._options = weights_of(model), options_of(model)
        self._many = batch > FEW
        dtype = self._weights.embedding.dtype
        kv_heads, width = config.kv_heads or config.heads, config.width // config.heads
        key_width = 0 if config.uniform_attention else width
        # Of few rows always the same memory, whose making would be a part of the time that a step takes.
        self._logits = torch.empty(0 if self._many else batch, len(model.logit_mask), dtype=model.logit_mask.dtype)
        self._logits_array = self._logits.numpy()

        def nothing(size: int) -> Array:
            many_rows, few_rows = (kv_heads, size, self.slots, batch), (batch, kv_heads, size, self.slots)
            return np.zeros((config.depth, *(many_rows if self._many else few_rows)), dtype)

        self._keys, self._values = nothing(key_width), nothing(width)

    def load(self, cache: KVCache) -> None:
        """Go on from what a pass through the model has put into a cache of the same rows."""
        first = max(0, cache.length - min(self.slots, cache.slots))
        positions = np.arange(first, cache.length)
        slots = positions % self.slots
        keys, values = (each[..., positions % cache.slots, :].numpy() for each in (cache.keys, cache.values))
        for mine, given in ((self._keys, keys), (self._values, values)):  # given (layers, B, K, S, D)
            if self._many:
                mine[:, :, :, slots] = given.transpose(0, 2, 4, 3, 1)
            else:
                mine[..., slots] = given.swapaxes(-1, -2)
        self.length = cache.length

    def __call__(self, tokens: Array) -> Tensor:
        """(B,) ids of one more token of each row to (B, V) logits, which hold until the next call.

        Raises `ValueError` beyond the capacity.
        """
        if self.length >= self.capacity:
            raise ValueError(f"{self.length + 1} tokens are more than the {self.capacity} that there is room for")
        of_model = (self._weights, self._options, self._keys, self._values)
        if self._many:
            logits = many.step(tokens, self.length, *of_model)
        else:
            few.step(tokens, self.length, *of_model, self._logits_array)
            logits = self._logits
        self.length += 1
        return logits
