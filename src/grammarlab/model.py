"""A decoder-only transformer, all of it in this file.

Axes: B batch, T new tokens, S tokens seen (S = T without a cache), C width, H heads, D = C / H, V vocabulary.

Parameters, by their names in the state dict (width C, feed-forward multiple M, context N):

    token_embedding.weight                  V C
    position_embedding.weight               N C         positions=learned alone
    blocks.i.attention.qkv.{weight,bias}    3 C C + 3 C query, key and value projections, one below the other
    blocks.i.attention.out.{weight,bias}    C C + C
    blocks.i.attention_norm.{weight,bias}   2 C
    blocks.i.feedforward.up.{weight,bias}   M C C + M C
    blocks.i.feedforward.down.{weight,bias} M C C + C
    blocks.i.feedforward_norm.{weight,bias} 2 C
    final_norm.{weight,bias}                2 C         norm_order=pre alone
    head.weight                             V C         the same tensor as token_embedding.weight if tied_embeddings
    head.bias                               V           without tied_embeddings

The lesson's model has 13,772 of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from grammarlab.cache import KVCache, LayerCache
from grammarlab.config import ModelConfig, NormOrder, Positions

CACHE_NEEDS_CAUSAL = (
    "model.causal=false cannot use a cache: without the mask a new token changes the keys and values of earlier tokens "
    "from the second layer on, and the outputs at earlier places in every layer, so everything is computed anew"
)


def attention_mask(n_new: int, n_seen: int, *, causal: bool, device: torch.device | None = None) -> Tensor:
    """(T, S), True where new token t may look at seen token s. The last row is the newest token.

    n_new=3, n_seen=3, causal: 1 0 0    n_new=2, n_seen=4, causal: 1 1 1 0    not causal: 1 1 1
                               1 1 0                               1 1 1 1                1 1 1
                               1 1 1                                                      1 1 1
    """
    everything = torch.ones(n_new, n_seen, dtype=torch.bool, device=device)
    return everything.tril(n_seen - n_new) if causal else everything


def sinusoids(context: int, width: int) -> Tensor:
    """(context, C) position table: sines in the even columns, cosines in the odd ones, wavelengths from 2π to 10000·2π.

    Source: Vaswani et al., "Attention is all you need" (2017), section 3.5.
    """
    position = torch.arange(context, dtype=torch.float64)[:, None]
    rate = torch.exp(torch.arange(0, width, 2, dtype=torch.float64) * (-math.log(10_000.0) / width))
    table = torch.empty(context, width, dtype=torch.float64)
    table[:, 0::2] = torch.sin(position * rate)
    table[:, 1::2] = torch.cos(position * rate)
    return table.to(torch.get_default_dtype())


class Attention(nn.Module):
    """Multi-head self-attention, scores divided by √D."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor, cache: LayerCache | None = None) -> Tensor:
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)  # (B, H, T, D)
        if cache is not None:
            k, v = cache.append(k, v)  # (B, H, S, D)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  # (B, H, T, D)
        return self.out(y.transpose(1, 2).reshape(B, T, C))


class FeedForward(nn.Module):
    def __init__(self, width: int, multiple: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, multiple * width)
        self.down = nn.Linear(multiple * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    """Attention and feed-forward, each a residual; the norm after the sum (post) or before the part (pre)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention = Attention(config.width, config.heads)
        self.attention_norm = nn.LayerNorm(config.width)
        self.feedforward = FeedForward(config.width, config.feedforward_multiple)
        self.feedforward_norm = nn.LayerNorm(config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.norm_order = config.norm_order

    def forward(self, x: Tensor, mask: Tensor, cache: LayerCache | None = None) -> Tensor:
        if self.norm_order == NormOrder.pre:
            x = x + self.dropout(self.attention(self.attention_norm(x), mask, cache))
            return x + self.dropout(self.feedforward(self.feedforward_norm(x)))
        x = self.attention_norm(x + self.dropout(self.attention(x, mask, cache)))
        return self.feedforward_norm(x + self.dropout(self.feedforward(x)))


class Decoder(nn.Module):
    """Token ids to logits of the next token.

    `pad_id`: the id of padding, which may stand on the right of a row and is never looked at.
    `never_generated`: ids whose logits are −inf (begin and pad), so that loss, measures and generation all speak of the
    same distribution.
    """

    position_table: Tensor
    logit_mask: Tensor

    def __init__(
        self, config: ModelConfig, *, vocabulary_size: int, pad_id: int, never_generated: Sequence[int] = ()
    ) -> None:
        super().__init__()
        self.config = config
        self.pad_id = pad_id
        self.token_embedding = nn.Embedding(vocabulary_size, config.width)
        if config.positions == Positions.learned:
            self.position_embedding = nn.Embedding(config.context, config.width)
        elif config.positions == Positions.sinusoidal:
            self.register_buffer("position_table", sinusoids(config.context, config.width), persistent=False)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.depth))
        self.final_norm = nn.LayerNorm(config.width) if config.norm_order == NormOrder.pre else nn.Identity()
        self.head = nn.Linear(config.width, vocabulary_size, bias=not config.tied_embeddings)
        logit_mask = torch.zeros(vocabulary_size)
        logit_mask[list(never_generated)] = -math.inf
        self.register_buffer("logit_mask", logit_mask, persistent=False)
        # Weights start as PyTorch's own layers do, like the lesson's: normal embeddings of deviation 1, and linear maps
        # uniform in ±1/√fan-in. A head of deviation 1 would begin far from uniform, so a tied one starts small, with
        # GPT-2's 0.02 (Radford et al. 2019).
        if config.tied_embeddings:
            nn.init.normal_(self.token_embedding.weight, std=0.02)
            self.head.weight = self.token_embedding.weight

    def forward(self, tokens: Tensor, cache: KVCache | None = None) -> Tensor:
        """(B, T) ids, the next T tokens after those in `cache`, to (B, T, V) logits.

        Raises `ValueError` beyond the context or the cache's capacity, and for a cache of a model that is not causal.
        """
        T = tokens.shape[1]
        seen = 0 if cache is None else cache.length
        if cache is not None and not self.config.causal:
            raise ValueError(CACHE_NEEDS_CAUSAL)
        limit = self.config.context if cache is None else min(self.config.context, cache.capacity)
        if seen + T > limit:
            raise ValueError(f"{seen + T} tokens are more than the {limit} that the context or the cache holds")

        mask = attention_mask(T, seen + T, causal=self.config.causal, device=tokens.device)  # (T, S)
        if not self.config.causal:  # padding on the right is in the future of every word: only here is it in sight
            mask = mask & (tokens != self.pad_id)[:, None, None, :]  # (B, 1, T, S)

        x = self.token_embedding(tokens)  # (B, T, C)
        if self.config.positions == Positions.learned:
            x = x + self.position_embedding.weight[seen : seen + T]
        elif self.config.positions == Positions.sinusoidal:
            x = x + self.position_table[seen : seen + T]
        x = self.dropout(x)
        for index, block in enumerate(self.blocks):
            x = block(x, mask, None if cache is None else cache.layers[index])
        return self.head(self.final_norm(x)) + self.logit_mask

    def new_cache(self, batch: int, capacity: int | None = None) -> KVCache:
        """An empty cache for `batch` sequences of up to `capacity` tokens (default: the context).

        Raises `ValueError` for a model that is not causal.
        """
        if not self.config.causal:
            raise ValueError(CACHE_NEEDS_CAUSAL)
        weight = self.token_embedding.weight
        return KVCache(
            depth=self.config.depth,
            batch=batch,
            heads=self.config.heads,
            capacity=self.config.context if capacity is None else capacity,
            head_width=self.config.width // self.config.heads,
            dtype=weight.dtype,
            device=weight.device,
        )
