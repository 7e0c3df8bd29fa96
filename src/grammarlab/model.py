"""A decoder-only transformer, all of it in this file.

Axes: B batch, T new tokens, S tokens seen (S = T without a cache), C width, H heads, K heads of keys and values,
D = C / H, F width of the feed-forward part, V vocabulary, N context.

Parameters, by their names in the state dict:

    token_embedding.weight                  V C
    position_embedding.weight               N C           positions=learned alone
    relative_bias.weight                    32 H          positions=relative alone
    blocks.i.attention.qkv.{weight,bias}    E C + E       E = (H + 2 K) D: query, key and value projections, one below
                                            the other; with uniform_attention the values' alone, E = K D
    blocks.i.attention.{query,key}_norm.*   D + D each    qk_norm alone
    blocks.i.attention.out.{weight,bias}    C C + C
    blocks.i.attention_norm.{weight,bias}   2 C
    blocks.i.feedforward.up.{weight,bias}   F C + F       with swiglu the gate's below which the values', 2 F C + 2 F
    blocks.i.feedforward.down.{weight,bias} C F + C
    blocks.i.feedforward_norm.{weight,bias} 2 C
    final_norm.{weight,bias}                2 C           norm_order=pre alone
    head.weight                             V C           the same tensor as token_embedding.weight if tied_embeddings
    head.bias                               V             without tied_embeddings

No bias stands there with bias=false, and none in a norm with norm=rms. The lesson's model has 13,772 parameters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from grammarlab.cache import KVCache, LayerCache
from grammarlab.config import FeedForwardName, ModelConfig, Norm, NormOrder, Positions

CACHE_NEEDS_CAUSAL = (
    "model.causal=false cannot use a cache: without the mask a new token changes the keys and values of earlier tokens "
    "from the second layer on, and the outputs at earlier places in every layer, so everything is computed anew"
)

# ---- who sees whom -------------------------------------------------------------------------------------------------


def attention_mask(distance: Tensor, *, causal: bool, window: int | None = None) -> Tensor:
    """(T, S) distances, position of the query less that of the key, to True where the query may look at the key.

    All of 3 tokens, causal: 1 0 0    the last 2 of 4: 1 1 1 0    window=2: 1 0 0    not causal, window=2: 1 1 0
                             1 1 0                     1 1 1 1              1 1 0                          1 1 1
                             1 1 1                                          0 1 1                          0 1 1
    """
    mask = distance >= 0 if causal else torch.ones_like(distance, dtype=torch.bool)
    return mask if window is None else mask & (distance.abs() < window)


def alibi_slopes(heads: int) -> Tensor:
    """(H,) what a score loses with each place of distance.

    2^(-8h/H) for h = 1 … H where H is a power of 2; else those of the next smaller power P, then every second of 2 P.
    Source: Press et al., "Train short, test long" (2022), section 3 and its published code.
    """
    power = 2 ** int(math.log2(heads))
    exponents = [8 * h / power for h in range(1, power + 1)]
    exponents += [8 * h / (2 * power) for h in range(1, 2 * power, 2)][: heads - power]
    return torch.tensor([2.0**-exponent for exponent in exponents], dtype=torch.float64)


RELATIVE_BUCKETS = 32
RELATIVE_FURTHEST = 128  # places; all from there on share a bucket


def relative_bucket(distance: Tensor, *, causal: bool) -> Tensor:
    """Distances to buckets 0 … 31: one each up to half of them, then ever wider ones, evenly in the logarithm.

    Not causal: half of the buckets are for each direction. Source: Raffel et al., "Exploring the limits of transfer
    learning" (T5, 2020), section 2.1 and its published code.
    """
    buckets = RELATIVE_BUCKETS if causal else RELATIVE_BUCKETS // 2
    exact = buckets // 2
    share = torch.log(distance.abs().clamp(min=1).double() / exact) / math.log(RELATIVE_FURTHEST / exact)
    wide = exact + (share * (buckets - exact) + 1e-9).long()  # so that rounding moves no whole number down
    bucket = torch.where(distance.abs() < exact, distance.abs(), wide.clamp(max=buckets - 1))
    return bucket if causal else bucket + (distance < 0) * buckets


def uniform_reach(heads: int) -> Tensor:
    """(H,) how many of the nearest tokens, itself the first, head h = 1 … H takes the mean of: 2^h - 1.

    Source: the uniform attention of Allen-Zhu and Li, "Physics of language models: part 1" (2023).
    """
    return 2 ** torch.arange(1, heads + 1).clamp(max=62) - 1


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


def rotation(positions: Tensor, head_width: int) -> tuple[Tensor, Tensor]:
    """Cosine and sine, each (T, D / 2) in float64, of each pair's angle: position · 10000^(-2i/D).

    Source: Su et al., "RoFormer" (2021), equation 15; pair i is of columns i and i + D / 2, as in LLaMA's checkpoints.
    """
    rate = 10_000.0 ** (-torch.arange(0, head_width, 2, dtype=torch.float64, device=positions.device) / head_width)
    angle = positions.double()[:, None] * rate
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """(…, T, D) turned by (T, D / 2) angles, not in less than float32: 16 bits would lose the place."""
    exact = torch.promote_types(x.dtype, torch.float32)
    left, right = x.to(exact).chunk(2, dim=-1)
    cos, sin = cos.to(exact), sin.to(exact)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1).to(x.dtype)


# ---- the parts -----------------------------------------------------------------------------------------------------

Rotation = tuple[Tensor, Tensor]


def new_norm(kind: Norm, width: int, bias: bool) -> nn.Module:
    return nn.LayerNorm(width, bias=bias) if kind == Norm.layer else nn.RMSNorm(width, eps=1e-5)


class Attention(nn.Module):
    """Multi-head self-attention, scores divided by √D; or, uniform, the mean that `mask` alone says."""

    def __init__(
        self,
        width: int,
        heads: int,
        kv_heads: int | None = None,
        *,
        uniform: bool = False,
        bias: bool = True,
        qk_norm: Norm | None = None,
    ) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.uniform = heads, kv_heads or heads, uniform
        self.head_width = width // heads
        query_and_key = () if uniform else (heads * self.head_width, self.kv_heads * self.head_width)
        self.sizes = (*query_and_key, self.kv_heads * self.head_width)
        self.qkv = nn.Linear(width, sum(self.sizes), bias=bias)
        self.query_norm = new_norm(qk_norm, self.head_width, bias) if qk_norm else nn.Identity()
        self.key_norm = new_norm(qk_norm, self.head_width, bias) if qk_norm else nn.Identity()
        self.out = nn.Linear(width, width, bias=bias)

    def forward(self, x: Tensor, mask: Tensor, turn: Rotation | None = None, cache: LayerCache | None = None) -> Tensor:
        """(B, T, C) to the same. `mask`: what `scaled_dot_product_attention` takes, (T, S) to (B, H, T, S)."""
        B, T, C = x.shape
        q, k, v = self.project(x, turn)
        if cache is not None:
            k, v = cache.append(k, v)  # (B, K, S, D)
        if self.uniform:
            weights = mask.softmax(-1).nan_to_num(0.0)  # padding, looking back on padding alone, sees nothing
            y = weights.to(v.dtype) @ v.repeat_interleave(self.heads // self.kv_heads, dim=1)
        else:
            bias = mask if mask.dtype == torch.bool else mask.to(q.dtype)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, enable_gqa=self.kv_heads != self.heads)
        return self.out(y.transpose(1, 2).reshape(B, T, C))

    def project(self, x: Tensor, turn: Rotation | None) -> tuple[Tensor, Tensor, Tensor]:
        """(B, T, C) to queries (B, H, T, D), keys and values (B, K, T, D), turned by their places where they are."""
        B, T, _ = x.shape
        parts = [
            part.view(B, T, size // self.head_width, self.head_width).transpose(1, 2)
            for part, size in zip(self.qkv(x).split(self.sizes, -1), self.sizes, strict=True)
        ]
        if self.uniform:
            (v,) = parts
            q = k = v[..., :0]  # the cache of keys that are not there is of width 0
        else:
            q, k, v = self.query_norm(parts[0]), self.key_norm(parts[1]), parts[2]
        return (q, k, v) if turn is None else (rotate(q, *turn), rotate(k, *turn), v)

    def weights(self, x: Tensor, mask: Tensor, turn: Rotation | None = None) -> Tensor:
        """(B, H, T, T) what each head weighs each token's values with: `forward` has only their product."""
        q, k, _ = self.project(x, turn)
        k = k.repeat_interleave(self.heads // self.kv_heads, dim=1)
        scores = q.new_zeros(len(q), self.heads, q.shape[2], k.shape[2])
        if not self.uniform:
            scores = q @ k.transpose(-1, -2) / math.sqrt(self.head_width)
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
        return scores.softmax(-1).nan_to_num(0.0)  # padding that sees nothing


class FeedForward(nn.Module):
    """F wide, with a non-linearity; swiglu: one half of it, through SiLU, times the other (Shazeer 2020)."""

    def __init__(self, width: int, inner_width: int, kind: FeedForwardName, bias: bool) -> None:
        super().__init__()
        self.kind = kind
        self.up = nn.Linear(width, inner_width * (2 if kind == FeedForwardName.swiglu else 1), bias=bias)
        self.down = nn.Linear(inner_width, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.up(x)
        if self.kind == FeedForwardName.swiglu:
            gate, value = x.chunk(2, dim=-1)
            x = F.silu(gate) * value
        elif self.kind == FeedForwardName.relu:
            x = F.relu(x)
        else:
            x = F.gelu(x, approximate="tanh" if self.kind == FeedForwardName.gelu_tanh else "none")
        return self.down(x)


class Block(nn.Module):
    """Attention and feed-forward, each a residual; the norm after the sum (post) or before the part (pre)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention = Attention(
            config.width,
            config.heads,
            config.kv_heads,
            uniform=config.uniform_attention,
            bias=config.bias,
            qk_norm=config.norm if config.qk_norm else None,
        )
        self.attention_norm = new_norm(config.norm, config.width, config.bias)
        self.feedforward = FeedForward(config.width, config.feedforward_width, config.feedforward, config.bias)
        self.feedforward_norm = new_norm(config.norm, config.width, config.bias)
        self.dropout = nn.Dropout(config.dropout)
        self.norm_order = config.norm_order

    def forward(self, x: Tensor, mask: Tensor, turn: Rotation | None = None, cache: LayerCache | None = None) -> Tensor:
        if self.norm_order == NormOrder.pre:
            x = x + self.dropout(self.attention(self.attention_norm(x), mask, turn, cache))
            return x + self.dropout(self.feedforward(self.feedforward_norm(x)))
        x = self.attention_norm(x + self.dropout(self.attention(x, mask, turn, cache)))
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
        elif config.positions == Positions.relative:
            self.relative_bias = nn.Embedding(RELATIVE_BUCKETS, config.heads)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.depth))
        pre = config.norm_order == NormOrder.pre
        self.final_norm = new_norm(config.norm, config.width, config.bias) if pre else nn.Identity()
        self.head = nn.Linear(config.width, vocabulary_size, bias=config.bias and not config.tied_embeddings)
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
        return self.logits(self.hidden(tokens, cache))

    def logits(self, hidden: Tensor) -> Tensor:
        """(…, C) to (…, V)."""
        return self.head(hidden) + self.logit_mask

    def hidden(self, tokens: Tensor, cache: KVCache | None = None) -> Tensor:
        """As `forward`, to (B, T, C), what the head reads: so that it need not be asked at each place of a prompt."""
        config, T = self.config, tokens.shape[1]
        seen = 0 if cache is None else cache.length
        if cache is not None and not config.causal:
            raise ValueError(CACHE_NEEDS_CAUSAL)
        limit = config.context if cache is None else min(config.context, cache.capacity)
        if seen + T > limit:
            raise ValueError(f"{seen + T} tokens are more than the {limit} that the context or the cache holds")

        positions = torch.arange(seen, seen + T, device=tokens.device)  # (T,)
        keys = positions if cache is None else cache.positions(T, tokens.device)  # (S,)
        distance = positions[:, None] - keys  # (T, S)
        mask = attention_mask(distance, causal=config.causal, window=config.window)
        if not config.causal:  # padding on the right is in the future of every word: only here is it in sight
            mask = mask & (tokens != self.pad_id)[:, None, None, :]  # (B, 1, T, S)
        bias = self.distance_bias(distance)
        if bias is not None:
            mask = bias.masked_fill(~mask, -math.inf)  # (H, T, S), or (B, H, T, S)
        turn = rotation(positions, config.width // config.heads) if config.positions == Positions.rotary else None

        x = self.token_embedding(tokens)  # (B, T, C)
        if config.positions == Positions.learned:
            x = x + self.position_embedding.weight[seen : seen + T]
        elif config.positions == Positions.sinusoidal:
            x = x + self.position_table[seen : seen + T]
        x = self.dropout(x)
        for index, block in enumerate(self.blocks):
            x = block(x, mask, turn, None if cache is None else cache.layers[index])
        return self.final_norm(x)

    @torch.no_grad()
    def attention_maps(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T) ids to each layer's attention weights and who is in sight, each (depth, B, H, T, T), the latter True
        and False."""
        seen: list[tuple[Tensor, Tensor]] = []

        def look(attention: nn.Module, arguments: tuple[Any, ...]) -> None:
            x, mask, turn, _ = arguments
            assert isinstance(attention, Attention)
            weights = attention.weights(x, mask, turn)
            visible = mask if mask.dtype == torch.bool else mask > -math.inf
            seen.append((weights, visible.expand(weights.shape)))

        layers = (module for module in self.modules() if isinstance(module, Attention))
        hooks = [attention.register_forward_pre_hook(look) for attention in layers]
        try:
            self.hidden(tokens)
        finally:
            for hook in hooks:
                hook.remove()
        weights, visible = zip(*seen, strict=True)
        return torch.stack(weights), torch.stack(visible)

    def distance_bias(self, distance: Tensor) -> Tensor | None:
        """(…) distances to what each head adds to its scores there, (H, …); None where there is no such thing."""
        heads, weight = self.config.heads, self.token_embedding.weight
        per_head = (heads, *[1] * distance.ndim)
        if self.config.positions == Positions.alibi:
            slopes = alibi_slopes(heads).to(distance.device, torch.promote_types(weight.dtype, torch.float32))
            return -slopes.view(per_head) * distance.abs()
        if self.config.positions == Positions.relative:
            bias = self.relative_bias(relative_bucket(distance, causal=self.config.causal))
            return bias.movedim(-1, 0)
        if self.config.uniform_attention:
            beyond = distance.abs() >= uniform_reach(heads).to(distance.device).view(per_head)
            return torch.zeros_like(beyond, dtype=weight.dtype).masked_fill(beyond, -math.inf)
        return None

    def new_cache(self, batch: int, capacity: int | None = None) -> KVCache:
        """An empty cache for `batch` sequences of up to `capacity` tokens (default: the context).

        Raises `ValueError` for a model that is not causal.
        """
        config, weight = self.config, self.token_embedding.weight
        if not config.causal:
            raise ValueError(CACHE_NEEDS_CAUSAL)
        head_width = config.width // config.heads
        return KVCache(
            depth=config.depth,
            batch=batch,
            kv_heads=config.kv_heads or config.heads,
            capacity=config.context if capacity is None else capacity,
            window=config.window,
            key_width=0 if config.uniform_attention else head_width,
            value_width=head_width,
            dtype=weight.dtype,
            device=weight.device,
        )
