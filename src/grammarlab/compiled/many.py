"""A step for many rows: torch's products of matrices, and between them compiled loops over the rows.

Activations are (features, rows); keys and values (layers, K, D, slots, rows), so that what is done at once is done to
numbers that lie together, however short the context and however narrow the heads: for one feature, a block of slots of
all rows.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from grammarlab.compiled.functions import Array, activate, exponentials, fast
from grammarlab.compiled.weights import Linear, Options, Places, Scale, Weights


@fast
def add_norm(x: Array, y: Array, scale: Scale, options: Options, h: Array) -> None:
    """(C, B): x + y into x, and its norm over C into h; post: the norm into both."""
    width, rows = x.shape
    mean = np.zeros(rows, x.dtype)
    square = np.zeros(rows, x.dtype)
    for i in range(width):
        for row in range(rows):
            x[i, row] += y[i, row]
            mean[row] += x[i, row]
    for row in range(rows):
        mean[row] = mean[row] / width if options.centred else x.dtype.type(0)
    for i in range(width):
        for row in range(rows):
            square[row] += (x[i, row] - mean[row]) * (x[i, row] - mean[row])
    for row in range(rows):
        square[row] = 1 / math.sqrt(square[row] / width + x.dtype.type(1e-5))
    for i in range(width):
        weight, bias = scale.weight[i], scale.bias[i]
        for row in range(rows):
            h[i, row] = (x[i, row] - mean[row]) * square[row] * weight + bias
            if options.post:
                x[i, row] = h[i, row]


@fast
def copy(part: Array, out: Array) -> None:
    """(D, B) to the same. Numba's own assignment of slices is ten times slower."""
    for i in range(part.shape[0]):
        for row in range(part.shape[1]):
            out[i, row] = part[i, row]


BLOCK = 256  # numbers that a loop goes over, about: fewer, and starting loops costs more than they do


@fast
def place(part: Array, scale: Scale, options: Options, places: Places, seen: int, out: Array) -> None:
    """(D, B) queries or keys of one head into `out`: their norm, if any, then their turn, if any."""
    if options.qk_norm:
        x = np.zeros_like(part)
        add_norm(x, part, scale, options, out)
    else:
        copy(part, out)
    half = places.cos.shape[1]
    for i in range(half):
        cos, sin = places.cos[seen, i], places.sin[seen, i]
        for row in range(part.shape[1]):
            left, right = out[i, row], out[i + half, row]
            out[i, row] = left * cos - right * sin
            out[i + half, row] = right * cos + left * sin


@fast
def attend(
    qkv: Array,  # ((H + 2 K) D, B)
    query_norm: Scale,
    key_norm: Scale,
    options: Options,
    places: Places,
    seen: int,
    keys: Array,  # (K, D, slots, B), written into; D = 0: attention is uniform
    values: Array,  # (K, D, slots, B), likewise
    out: Array,  # (C, B)
) -> None:
    kv_heads, key_width, slots, rows = keys.shape
    width = values.shape[1]
    group = options.heads // kv_heads
    slot = seen % slots
    kept = min(seen + 1, slots)
    behind_queries = options.heads * key_width
    behind_keys = behind_queries + kv_heads * key_width
    for kv_head in range(kv_heads):
        if key_width > 0:
            start = behind_queries + kv_head * key_width
            place(qkv[start : start + key_width], key_norm, options, places, seen, keys[kv_head, :, slot])
        start = behind_keys + kv_head * width
        copy(qkv[start : start + width], values[kv_head, :, slot])
    all_keys = keys.reshape((kv_heads, key_width, slots * rows))
    all_values = values.reshape((kv_heads, width, slots * rows))
    times = max(1, min(kept, BLOCK // rows))  # slots of a block
    block = times * rows
    query = np.empty((key_width, rows), keys.dtype)
    queries = np.empty((key_width, block), keys.dtype)
    flat = np.empty(kept * rows, keys.dtype)
    scores = flat.reshape((kept, rows))
    whole = np.empty(kept * rows, np.int32)
    total = np.empty(rows, keys.dtype)
    sums = np.empty(block, keys.dtype)
    scale = keys.dtype.type(1 / math.sqrt(max(1, key_width)))
    for head in range(options.heads):
        if key_width > 0:
            start = head * key_width
            place(qkv[start : start + key_width], query_norm, options, places, seen, query)
        for i in range(key_width):
            for time in range(times):
                for row in range(rows):
                    queries[i, time * rows + row] = query[i, row] * scale
        score(queries, all_keys[head // group], flat)
        if places.bias.shape[1] > 0:
            for s in range(kept):
                bias = places.bias[head, (seen - s) % slots]
                for row in range(rows):
                    scores[s, row] += bias
        for row in range(rows):
            total[row] = scores[0, row]
        for s in range(1, kept):
            for row in range(rows):
                total[row] = max(total[row], scores[s, row])
        for s in range(kept):
            for row in range(rows):
                scores[s, row] -= total[row]
        exponentials(flat, whole)
        for row in range(rows):
            total[row] = 0
        for s in range(kept):
            for row in range(rows):
                total[row] += scores[s, row]
        for row in range(rows):
            total[row] = 1 / total[row]
        for i in range(width):
            weigh(flat, all_values[head // group, i], sums)
            to = out[head * width + i]
            for row in range(rows):
                to[row] = sums[row] * total[row]
            for time in range(1, times):
                for row in range(rows):
                    to[row] += sums[time * rows + row] * total[row]


@fast
def score(queries: Array, keys: Array, scores: Array) -> None:
    """(D, block) queries, again and again, times (D, more) keys, summed over D into (kept rows,) scores."""
    width, block = queries.shape
    for t in range(len(scores)):
        scores[t] = 0
    by_four = width - width % 4
    for i in range(0, by_four, 4):
        q0, q1, q2, q3 = queries[i], queries[i + 1], queries[i + 2], queries[i + 3]
        for start in range(0, len(scores), block):
            to = scores[start : start + block]
            k0, k1, k2, k3 = keys[i, start:], keys[i + 1, start:], keys[i + 2, start:], keys[i + 3, start:]
            for t in range(len(to)):
                to[t] += q0[t] * k0[t] + q1[t] * k1[t] + q2[t] * k2[t] + q3[t] * k3[t]
    for i in range(by_four, width):
        for start in range(0, len(scores), block):
            to = scores[start : start + block]
            k0 = keys[i, start:]
            for t in range(len(to)):
                to[t] += queries[i, t] * k0[t]


@fast
def weigh(weights: Array, values: Array, sums: Array) -> None:
    """(kept rows,) weights times values, block upon block summed into (block,)."""
    block = len(sums)
    for t in range(block):
        sums[t] = 0
    by_four = len(weights) - len(weights) % (4 * block)
    for start in range(0, by_four, 4 * block):
        one, two, three = start + block, start + 2 * block, start + 3 * block
        w0, w1, w2, w3 = weights[start:], weights[one:], weights[two:], weights[three:]
        v0, v1, v2, v3 = values[start:], values[one:], values[two:], values[three:]
        for t in range(block):
            sums[t] += w0[t] * v0[t] + w1[t] * v1[t] + w2[t] * v2[t] + w3[t] * v3[t]
    for start in range(by_four, len(weights), block):
        w0, v0 = weights[start : start + block], values[start:]
        for t in range(len(w0)):
            sums[t] += w0[t] * v0[t]


def linear(x: Tensor, weights: Linear) -> Tensor:
    """(in, B) to (out, B)."""
    return torch.addmm(torch.from_numpy(weights.bias)[:, None], torch.from_numpy(weights.weight), x)


def step(
    tokens: Array,  # (B,) ids
    seen: int,
    weights: Weights,
    options: Options,
    keys: Array,  # (layers, K, D, slots, B), written into
    values: Array,  # likewise
) -> Tensor:
    """(B, V) logits."""
    x = F.embedding(torch.from_numpy(tokens), torch.from_numpy(weights.embedding)).t().contiguous()  # (C, B)
    if len(weights.places.embedding) > 0:
        x += torch.from_numpy(weights.places.embedding[seen])[:, None]
    h = x.clone()
    if not options.post:
        add_norm(x.numpy(), np.zeros_like(x.numpy()), weights.first, options, h.numpy())
    mixed = torch.empty_like(x)
    for index, layer in enumerate(weights.layers):
        attend(
            linear(h, layer.qkv).numpy(),
            layer.query_norm,
            layer.key_norm,
            options,
            weights.places,
            seen,
            keys[index],
            values[index],
            mixed.numpy(),
        )
        add_norm(x.numpy(), linear(mixed, layer.out).numpy(), layer.after_attention, options, h.numpy())
        up = linear(h, layer.up)
        inner = torch.empty(layer.down.weight.shape[1], len(tokens), dtype=x.dtype)
        activate(up.view(1, -1).numpy(), options.activation, inner.view(1, -1).numpy())
        add_norm(x.numpy(), linear(inner, layer.down).numpy(), layer.after_feedforward, options, h.numpy())
    return torch.add(linear(h, weights.head).t(), torch.from_numpy(weights.logit_mask)).contiguous()
