"""A step for few rows: one compiled function for all of it, so that nothing is started but once.

Activations are (rows, features); keys and values (layers, rows, K, D, slots), so that a sum over tokens runs over what
lies together.
"""

from __future__ import annotations

import math

import numpy as np

from grammarlab.compiled.functions import Array, activate, exponentials, fast
from grammarlab.compiled.weights import Linear, Options, Places, Scale, Weights


@fast
def linear(x: Array, weights: Linear, out: Array) -> None:
    """(B, in) to (B, out): four dot products at a time, so that none waits for the sum of another."""
    weight, bias = weights.weight, weights.bias
    rows, inner = x.shape
    outer = weight.shape[0]
    whole = outer - outer % 4
    for row in range(rows):
        from_ = x[row]
        for j in range(0, whole, 4):
            w0, w1, w2, w3 = weight[j], weight[j + 1], weight[j + 2], weight[j + 3]
            s0, s1, s2, s3 = bias[j], bias[j + 1], bias[j + 2], bias[j + 3]
            for i in range(inner):
                s0 += w0[i] * from_[i]
                s1 += w1[i] * from_[i]
                s2 += w2[i] * from_[i]
                s3 += w3[i] * from_[i]
            out[row, j], out[row, j + 1], out[row, j + 2], out[row, j + 3] = s0, s1, s2, s3
        for j in range(whole, outer):
            total = bias[j]
            for i in range(inner):
                total += weight[j, i] * from_[i]
            out[row, j] = total


@fast
def normalise(x: Array, scale: Scale, centred: bool, out: Array) -> None:
    """(n,) to (n,)."""
    n = len(x)
    mean = x[0] * 0
    if centred:
        for i in range(n):
            mean += x[i]
        mean /= n
    square = x[0] * 0
    for i in range(n):
        square += (x[i] - mean) * (x[i] - mean)
    by = x.dtype.type(1 / math.sqrt(square / n + 1e-5))
    for i in range(n):
        out[i] = (x[i] - mean) * by * scale.weight[i] + scale.bias[i]


@fast
def add_norm(x: Array, y: Array, scale: Scale, options: Options, h: Array) -> None:
    """x + y into x, and its norm into h; post: the norm into both. The last sum of a post-norm model has its own."""
    for row in range(len(x)):
        for i in range(x.shape[1]):
            x[row, i] += y[row, i]
        normalise(x[row], scale, options.centred, h[row])
        if options.post:
            for i in range(x.shape[1]):
                x[row, i] = h[row, i]


@fast
def place(row: Array, start: int, scale: Scale, options: Options, places: Places, seen: int, out: Array) -> None:
    """One head's query or key out of `row`: its norm, if any, then its turn, if any."""
    for i in range(len(out)):
        out[i] = row[start + i]
    if options.qk_norm:
        normalise(out, scale, options.centred, out)
    half = places.cos.shape[1]
    for i in range(half):
        left, right, cos, sin = out[i], out[i + half], places.cos[seen, i], places.sin[seen, i]
        out[i] = left * cos - right * sin
        out[i + half] = right * cos + left * sin


@fast
def attend(
    qkv: Array,  # (B, (H + 2 K) D)
    query_norm: Scale,
    key_norm: Scale,
    options: Options,
    places: Places,
    seen: int,
    keys: Array,  # (B, K, D, slots), written into; D = 0: attention is uniform
    values: Array,
    out: Array,  # (B, C)
) -> None:
    rows, kv_heads, key_width, slots = keys.shape
    width = values.shape[2]
    group = options.heads // kv_heads
    slot = seen % slots
    kept = min(seen + 1, slots)
    zero = keys.dtype.type(0)
    scale = keys.dtype.type(1 / math.sqrt(max(1, key_width)))
    vector = np.empty(key_width, keys.dtype)
    flat = np.empty(options.heads * kept, keys.dtype)
    scores = flat.reshape(options.heads, kept)
    whole = np.empty(options.heads * kept, np.int32)
    behind_queries = options.heads * key_width
    behind_keys = behind_queries + kv_heads * key_width
    for row in range(rows):
        for kv_head in range(kv_heads):
            if key_width > 0:
                place(qkv[row], behind_queries + kv_head * key_width, key_norm, options, places, seen, vector)
                for i in range(key_width):
                    keys[row, kv_head, i, slot] = vector[i]
            for i in range(width):
                values[row, kv_head, i, slot] = qkv[row, behind_keys + kv_head * width + i]
        for head in range(options.heads):
            key, to = keys[row, head // group], scores[head]
            if key_width > 0:
                place(qkv[row], head * key_width, query_norm, options, places, seen, vector)
            for s in range(kept):
                to[s] = zero
            by_four = key_width - key_width % 4
            for i in range(0, by_four, 4):
                q0, q1, q2, q3 = vector[i], vector[i + 1], vector[i + 2], vector[i + 3]
                k0, k1, k2, k3 = key[i], key[i + 1], key[i + 2], key[i + 3]
                for s in range(kept):
                    to[s] += q0 * k0[s] + q1 * k1[s] + q2 * k2[s] + q3 * k3[s]
            for i in range(by_four, key_width):
                for s in range(kept):
                    to[s] += vector[i] * key[i, s]
            if places.bias.shape[1] > 0:
                for s in range(kept):
                    to[s] = to[s] * scale + places.bias[head, (seen - s) % slots]
            else:
                for s in range(kept):
                    to[s] *= scale
            largest = to[0]
            for s in range(1, kept):
                largest = max(largest, to[s])
            for s in range(kept):
                to[s] -= largest
        exponentials(flat, whole)
        for head in range(options.heads):
            value, weight = values[row, head // group], scores[head]
            mass = zero
            for s in range(kept):
                mass += weight[s]
            share = 1 / mass
            at = head * width
            by_four = width - width % 4
            for i in range(0, by_four, 4):
                v0, v1, v2, v3 = value[i], value[i + 1], value[i + 2], value[i + 3]
                s0, s1, s2, s3 = zero, zero, zero, zero
                for s in range(kept):
                    s0 += weight[s] * v0[s]
                    s1 += weight[s] * v1[s]
                    s2 += weight[s] * v2[s]
                    s3 += weight[s] * v3[s]
                out[row, at + i], out[row, at + i + 1] = s0 * share, s1 * share
                out[row, at + i + 2], out[row, at + i + 3] = s2 * share, s3 * share
            for i in range(by_four, width):
                s0 = zero
                for s in range(kept):
                    s0 += weight[s] * value[i, s]
                out[row, at + i] = s0 * share


@fast
def step(
    tokens: Array,  # (B,) ids
    seen: int,
    weights: Weights,
    options: Options,
    keys: Array,  # (layers, B, K, D, slots), written into
    values: Array,
    logits: Array,  # (B, V), written into
) -> None:
    rows, width = len(tokens), weights.embedding.shape[1]
    x = np.empty((rows, width), logits.dtype)
    for row in range(rows):
        for i in range(width):
            x[row, i] = weights.embedding[tokens[row], i]
        if len(weights.places.embedding) > 0:
            for i in range(width):
                x[row, i] += weights.places.embedding[seen, i]
    h = x.copy()
    if not options.post:
        for row in range(rows):
            normalise(x[row], weights.first, options.centred, h[row])
    qkv = np.empty((rows, weights.layers[0].qkv.weight.shape[0]), logits.dtype)
    mixed, y = np.empty_like(x), np.empty_like(x)
    up = np.empty((rows, weights.layers[0].up.weight.shape[0]), logits.dtype)
    inner = np.empty((rows, weights.layers[0].down.weight.shape[1]), logits.dtype)
    for index in range(len(weights.layers)):
        layer = weights.layers[index]
        linear(h, layer.qkv, qkv)
        attend(qkv, layer.query_norm, layer.key_norm, options, weights.places, seen, keys[index], values[index], mixed)
        linear(mixed, layer.out, y)
        add_norm(x, y, layer.after_attention, options, h)
        linear(h, layer.up, up)
        activate(up, options.activation, inner)
        linear(inner, layer.down, y)
        add_norm(x, y, layer.after_feedforward, options, h)
    linear(h, weights.head, logits)
    for row in range(rows):
        for i in range(logits.shape[1]):
            logits[row, i] += weights.logit_mask[i]
