"""Keys and values of the tokens seen. Knows no model.

Axes: B batch, T new tokens, S tokens seen, H heads, D head width.
"""

from __future__ import annotations

import torch
from torch import Tensor


class LayerCache:
    """One layer's keys and values, written in place into one allocation."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self._keys, self._values = keys, values  # each (B, H, capacity, D)
        self.length = 0

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Add T tokens, get all S seen so far: views, so that slots not yet written are never read."""
        end = self.length + keys.shape[2]
        self._keys[:, :, self.length : end] = keys
        self._values[:, :, self.length : end] = values
        self.length = end
        return self._keys[:, :, :end], self._values[:, :, :end]


class KVCache:
    """The layers' caches for up to `capacity` tokens of B sequences that go on in step."""

    def __init__(
        self,
        *,
        depth: int,
        batch: int,
        heads: int,
        capacity: int,
        head_width: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        # One allocation for all layers. Zeros, not empty memory: a NaN there could spread even from behind a mask.
        memory = torch.zeros(depth, 2, batch, heads, capacity, head_width, dtype=dtype, device=device)
        self.layers = [LayerCache(memory[layer, 0], memory[layer, 1]) for layer in range(depth)]
        self.capacity = capacity

    @property
    def length(self) -> int:
        """Number of tokens seen."""
        return self.layers[0].length
