"""Keys and values of the tokens seen. Knows no model.

Axes: B batch, T new tokens, S tokens kept, K heads of keys and values, D head width.
"""

from __future__ import annotations

import torch
from torch import Tensor


class LayerCache:
    """One layer's keys and values, written in place into its part of one allocation.

    Token t lies in slot t mod slots: where there are fewer slots than tokens, a new one takes the place of the oldest.
    """

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self._keys, self._values = keys, values  # each (B, K, slots, D)
        self.length = 0

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Add T tokens, each (B, K, T, D); get those that they can see, in the order of `KVCache.positions`."""
        start, end, slots = self.length, self.length + keys.shape[2], self._keys.shape[2]
        self.length = end
        if end <= slots:
            self._keys[:, :, start:end] = keys
            self._values[:, :, start:end] = values
            return self._keys[:, :, :end], self._values[:, :, :end]  # slots not yet written are never read
        if end - start == 1:
            self._keys[:, :, start % slots] = keys[:, :, 0]
            self._values[:, :, start % slots] = values[:, :, 0]
            return self._keys, self._values
        # The first of several new tokens still sees what the last of them overwrites.
        old = torch.arange(max(0, start - slots + 1), start, device=keys.device) % slots
        all_keys = torch.cat([self._keys[:, :, old], keys], dim=2)
        all_values = torch.cat([self._values[:, :, old], values], dim=2)
        kept = torch.arange(end - slots, end, device=keys.device) % slots
        self._keys[:, :, kept] = all_keys[:, :, -slots:]
        self._values[:, :, kept] = all_values[:, :, -slots:]
        return all_keys, all_values


class KVCache:
    """The layers' caches for up to `capacity` tokens of B sequences that go on in step.

    `window`: how many tokens, itself among them, a token can see; no more are kept.
    """

    def __init__(
        self,
        *,
        depth: int,
        batch: int,
        kv_heads: int,
        capacity: int,
        window: int | None,
        key_width: int,
        value_width: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.capacity = capacity
        self.slots = capacity if window is None else min(capacity, window)
        # Zeros, not empty memory: a NaN there could spread even from behind a mask.
        shape = (depth, batch, kv_heads, self.slots)
        self.keys = torch.zeros(*shape, key_width, dtype=dtype, device=device)
        self.values = torch.zeros(*shape, value_width, dtype=dtype, device=device)
        self.layers = [LayerCache(keys, values) for keys, values in zip(self.keys, self.values, strict=True)]

    @property
    def length(self) -> int:
        """Number of tokens seen."""
        return self.layers[0].length

    def positions(self, new: int, device: torch.device | None = None) -> Tensor:
        """(S,) positions of the tokens that `LayerCache.append` of `new` tokens gives, in its order."""
        start, end = self.length, self.length + new
        if end <= self.slots:
            return torch.arange(end, device=device)
        if new == 1:
            return start - (start - torch.arange(self.slots, device=device)) % self.slots
        return torch.arange(max(0, start - self.slots + 1), end, device=device)
