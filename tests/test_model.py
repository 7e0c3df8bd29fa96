"""The decoder: its laws, and the same function written again slowly in numpy."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor
from torch.testing import assert_close

from grammarlab.config import BY_DISTANCE, ConfigError, FeedForwardName, ModelConfig, Norm, NormOrder, Positions
from grammarlab.model import Attention, Decoder, alibi_slopes, attention_mask, relative_bucket, sinusoids

PAD, BEGIN = 0, 1
BATCH, VOCABULARY, CONTEXT = 3, 13, 11
SIZES: dict[str, Any] = {"width": 10, "heads": 5, "depth": 2, "context": CONTEXT, "feedforward_multiple": 3}
PLACES: list[dict[str, Any]] = [{"positions": positions} for positions in Positions]
PLACES += [{"positions": p, "uniform_attention": True} for p in Positions if p not in BY_DISTANCE]

# Each option by itself, then several together.
LLAMA: dict[str, Any] = {
    "positions": Positions.rotary,
    "norm": Norm.rms,
    "norm_order": NormOrder.pre,
    "feedforward": FeedForwardName.swiglu,
    "bias": False,
}
OPTIONS: list[dict[str, Any]] = [
    *PLACES,
    *({"norm": norm, "norm_order": order, "bias": b} for norm, order, b in product(Norm, NormOrder, (True, False))),
    *({"feedforward": kind, "bias": b} for kind, b in product(FeedForwardName, (True, False))),
    *({"feedforward_multiple": multiple} for multiple in (0.5, 1, 2.5)),
    *({"window": window} for window in (1, 2, 4, 17)),
    *({"heads": 2, "qk_norm": True, "norm": norm, "bias": b} for norm, b in product(Norm, (True, False))),
    *({"width": 12, "heads": 6, "kv_heads": kv_heads} for kv_heads in (1, 2, 3, 6)),
    *({"heads": heads} for heads in (1, 2, 10)),
    *({"depth": depth} for depth in (1, 3)),
    *({"tied_embeddings": True, "norm_order": order, "bias": b} for order, b in product(NormOrder, (True, False))),
    LLAMA | {"width": 12, "heads": 6, "kv_heads": 3},
    LLAMA | {"width": 12, "heads": 3, "kv_heads": 1, "qk_norm": True, "window": 3, "tied_embeddings": True},
    LLAMA | {"positions": Positions.relative, "feedforward": FeedForwardName.relu, "context": 29},
    LLAMA | {"positions": Positions.alibi, "width": 14, "heads": 7, "kv_heads": 1, "window": 3},
    {"positions": Positions.relative, "width": 12, "heads": 3, "kv_heads": 1, "qk_norm": True, "window": 2},
    {"uniform_attention": True, "width": 12, "heads": 4, "kv_heads": 2, "window": 4, "norm": Norm.rms},
    {"uniform_attention": True, "width": 12, "heads": 3, "kv_heads": 1, "context": 29, "bias": False},
]
# Who sees whom.
SIGHTS = [
    places | {"causal": causal, "window": window}
    for places, causal, window in product(PLACES, (True, False), (None, 1, 3))
]


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def fresh(seed: int = 0, *, vocabulary: int = VOCABULARY, **options: Any) -> Decoder:
    """A decoder as training would begin with it."""
    torch.manual_seed(seed)
    config = ModelConfig(**(SIZES | options))
    return Decoder(config, vocabulary_size=vocabulary, pad_id=PAD, never_generated=(PAD, BEGIN))


def decoder(seed: int = 0, **options: Any) -> Decoder:
    """A decoder with large weights of every kind: ones that begin at 0 or 1, or small, would hide faults."""
    model = fresh(seed, **options).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.normal_(std=0.5, generator=generator)
    return model


def words(seed: int, length: int = CONTEXT, batch: int = BATCH) -> Tensor:
    """(B, T) ids without padding, begin first."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(2, VOCABULARY, (batch, length), generator=generator)
    tokens[:, 0] = BEGIN
    return tokens


def exactly_equal_positions(before: Tensor, after: Tensor) -> list[bool]:
    """For each position of (1, T, V) logits, whether all of them are the same to the last bit."""
    return (before == after).all(-1)[0].tolist()


def furthest_apart(a: Tensor, b: Tensor) -> float:
    """The largest difference of logits, where −inf is equal to itself."""
    return float((a - b).nan_to_num(0).abs().max())


# ---- the mask ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("causal", "window", "table"),
    [
        (True, None, ["1"]),
        (True, None, ["100", "110", "111"]),
        (True, None, ["1110", "1111"]),
        (True, None, ["11110", "11111"]),
        (True, None, ["11111"]),  # one new token sees all that came before it
        (False, None, ["111", "111", "111"]),
        (False, None, ["11111", "11111"]),
        (True, 1, ["1000", "0100", "0010", "0001"]),
        (True, 2, ["1000", "1100", "0110", "0011"]),
        (True, 3, ["1000", "1100", "1110", "0111"]),
        (True, 4, ["1000", "1100", "1110", "1111"]),
        (True, 2, ["00110", "00011"]),
        (False, 1, ["1000", "0100", "0010", "0001"]),
        (False, 2, ["1100", "1110", "0111", "0011"]),
        (False, 3, ["1110", "1111", "1111", "0111"]),
        (False, 2, ["00111", "00011"]),
    ],
)
def test_the_mask_is_the_drawn_table(causal: bool, window: int | None, table: list[str]) -> None:
    drawn = torch.tensor([[sign == "1" for sign in row] for row in table])
    new, seen = drawn.shape
    distance = torch.arange(seen - new, seen)[:, None] - torch.arange(seen)
    assert torch.equal(attention_mask(distance, causal=causal, window=window), drawn)
    turned = [*range(seen // 2, seen), *range(seen // 2)]  # as the cache of a window holds them
    assert torch.equal(attention_mask(distance[:, turned], causal=causal, window=window), drawn[:, turned])


# ---- causality ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("norm_order", list(NormOrder))
@pytest.mark.parametrize("places", PLACES, ids=str)
def test_a_changed_token_moves_no_earlier_logit_if_and_only_if_causal(
    places: dict[str, Any], norm_order: NormOrder, depth: int, causal: bool
) -> None:
    model = decoder(norm_order=norm_order, depth=depth, causal=causal, **places)
    tokens = words(seed=1, length=6, batch=1)
    changed = tokens.clone()
    changed[0, 4] = 2 if tokens[0, 4] != 2 else 3
    assert exactly_equal_positions(model(tokens), model(changed)) == [causal] * 4 + [False] * 2


@pytest.mark.parametrize("norm_order", list(NormOrder))
@pytest.mark.parametrize("window", [None, 2])
@pytest.mark.parametrize("positions", list(Positions))
def test_no_score_is_large_enough_to_see_behind_the_mask(
    positions: Positions, window: int | None, norm_order: NormOrder
) -> None:
    model = decoder(positions=positions, norm_order=norm_order, window=window)
    for block in model.blocks:
        block.attention.qkv.weight[: 2 * SIZES["width"]] *= 1e4  # queries and keys
        block.attention.qkv.bias[: 2 * SIZES["width"]] *= 1e4
    tokens = words(seed=2, length=9, batch=1)
    for token in range(2, VOCABULARY):
        changed = tokens.clone()
        changed[0, 4] = token
        same = exactly_equal_positions(model(tokens), model(changed))
        assert all(same[:4])
        assert window is None or all(same[7:])  # one place a layer
    assert not model(tokens).isnan().any()


# ---- against the slow one ----------------------------------------------------------------------------------

Array = NDArray[np.float64]


def softmax(scores: Array) -> Array:
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


def slow_attention(q: Array, k: Array, v: Array, bias: Array) -> Array:
    """(T, H, D), (T, K, D), (T, K, D), and (H, T, T) added to the scores, to (T, C): token by token, head by head."""
    length, heads, head_width = q.shape
    y = np.zeros_like(q)
    for head, t in product(range(heads), range(length)):
        shared = head // (heads // k.shape[1])
        seen = [s for s in range(length) if bias[head, t, s] > -math.inf]
        if seen:  # padding that looks back on padding alone sees nothing
            scores = [q[t, head] @ k[s, shared] / math.sqrt(head_width) + bias[head, t, s] for s in seen]
            y[t, head] = softmax(np.array(scores)) @ v[seen, shared]
    return y.reshape(length, heads * head_width)


def slow_decoder(model: Decoder, tokens: Sequence[int]) -> Array:
    """(T, V) logits of one row, from the documented names of the state dict alone."""
    config = model.config
    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    length, heads = len(tokens), config.heads

    def linear(name: str, x: Array) -> Array:
        return x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", 0.0)

    def norm(name: str, x: Array) -> Array:
        if config.norm == Norm.layer:
            x = x - x.mean(-1, keepdims=True)
        scaled = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)
        return scaled * weights[f"{name}.weight"] + weights.get(f"{name}.bias", 0.0)

    def bias_at(head: int, t: int, s: int) -> float:
        away, hidden = abs(t - s), s > t if config.causal else tokens[s] == PAD
        if hidden or (config.window is not None and away >= config.window):
            return -math.inf
        if config.uniform_attention:
            return 0.0 if away < 2 ** (head + 1) - 1 else -math.inf
        if config.positions == Positions.alibi:
            return -slow_slopes(heads)[head] * away
        if config.positions == Positions.relative:
            return float(weights["relative_bias.weight"][slow_bucket(t - s, config.causal), head])
        return 0.0

    def attention(name: str, x: Array) -> Array:
        parts = linear(f"{name}.qkv", x).reshape(length, -1, config.width // heads)
        if config.uniform_attention:
            q, k, v = np.zeros((length, heads, parts.shape[2])), np.zeros_like(parts), parts
        else:
            kv_heads = (parts.shape[1] - heads) // 2
            q, k, v = parts[:, :heads], parts[:, heads : heads + kv_heads], parts[:, heads + kv_heads :]
        if config.qk_norm:
            q, k = norm(f"{name}.query_norm", q), norm(f"{name}.key_norm", k)
        if config.positions == Positions.rotary:
            q, k = slow_rotation(q), slow_rotation(k)
        bias = [[[bias_at(head, t, s) for s in range(length)] for t in range(length)] for head in range(heads)]
        return linear(f"{name}.out", slow_attention(q, k, v, np.array(bias)))

    def feedforward(name: str, x: Array) -> Array:
        return linear(f"{name}.down", slow_nonlinearity(config.feedforward, linear(f"{name}.up", x)))

    x = weights["token_embedding.weight"][list(tokens)]
    if config.positions == Positions.learned:
        x = x + weights["position_embedding.weight"][:length]
    elif config.positions == Positions.sinusoidal:
        x = x + slow_sinusoids(length, config.width)
    for index in range(config.depth):
        name = f"blocks.{index}"
        if config.norm_order == NormOrder.pre:
            x = x + attention(f"{name}.attention", norm(f"{name}.attention_norm", x))
            x = x + feedforward(f"{name}.feedforward", norm(f"{name}.feedforward_norm", x))
        else:
            x = norm(f"{name}.attention_norm", x + attention(f"{name}.attention", x))
            x = norm(f"{name}.feedforward_norm", x + feedforward(f"{name}.feedforward", x))
    if config.norm_order == NormOrder.pre:
        x = norm("final_norm", x)
    logits = linear("head", x)
    logits[:, [PAD, BEGIN]] = -math.inf
    return logits


def slow_nonlinearity(kind: FeedForwardName, x: Array) -> Array:
    if kind == FeedForwardName.gelu:
        return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2
    if kind == FeedForwardName.gelu_tanh:
        return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2
    if kind == FeedForwardName.relu:
        return np.maximum(x, 0)
    gate, value = np.split(x, 2, axis=1)
    return gate / (1 + np.exp(-gate)) * value


def slow_sinusoids(context: int, width: int) -> Array:
    table = np.zeros((context, width))
    for position, column in product(range(context), range(width)):
        angle = position / 10_000 ** ((column - column % 2) / width)
        table[position, column] = math.sin(angle) if column % 2 == 0 else math.cos(angle)
    return table


def slow_rotation(x: Array) -> Array:
    """(T, H, D): columns i and i + D / 2 are one complex number, which turns by t / 10000^(2i / D)."""
    half = x.shape[2] // 2
    turned = x[:, :, :half] + 1j * x[:, :, half:]
    for t, i in product(range(len(x)), range(half)):
        turned[t, :, i] *= np.exp(1j * t / 10_000 ** (i / half))
    return np.concatenate([turned.real, turned.imag], axis=2)


def slow_slopes(heads: int) -> list[float]:
    power = max(2**n for n in range(heads) if 2**n <= heads)
    whole = [2.0 ** (-8 * (head + 1) / power) for head in range(power)]
    return whole if heads == power else whole + slow_slopes(2 * power)[::2][: heads - power]


def slow_bucket(distance: int, causal: bool) -> int:
    """In whole numbers: of n wide buckets after n exact ones, number j begins at n · (128 / n)^(j / n)."""
    n = 16 if causal else 8
    direction = 16 if distance < 0 and not causal else 0
    away = abs(distance)
    if away < n:
        return direction + away
    return direction + n + max(j for j in range(n) if away**n >= n**n * (128 // n) ** j)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_decoder_equals_the_slow_one(options: dict[str, Any], causal: bool) -> None:
    model = decoder(seed=3, causal=causal, **options)
    tokens = words(seed=3, length=model.config.context - 4)
    tokens[1, 3:] = PAD
    logits = model(tokens).numpy()
    for row, fast in zip(tokens.tolist(), logits, strict=True):
        np.testing.assert_allclose(fast, slow_decoder(model, row), rtol=1e-12, atol=1e-11)


CONFIGURATIONS = st.fixed_dictionaries(
    {
        "positions": st.sampled_from(Positions),
        "uniform_attention": st.booleans(),
        "qk_norm": st.booleans(),
        "causal": st.booleans(),
        "heads": st.sampled_from([1, 2, 3, 4, 6]),
        "kv_heads": st.sampled_from([None, 1, 2, 3]),
        "width": st.sampled_from([24, 48]),
        "depth": st.integers(1, 2),
        "window": st.none() | st.integers(1, 8),
        "norm": st.sampled_from(Norm),
        "norm_order": st.sampled_from(NormOrder),
        "feedforward": st.sampled_from(FeedForwardName),
        "feedforward_multiple": st.sampled_from([0.5, 1, 2.25]),
        "bias": st.booleans(),
        "tied_embeddings": st.booleans(),
    }
)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(options=CONFIGURATIONS, length=st.integers(1, 8), padding=st.integers(0, 3))
def test_any_configuration_equals_the_slow_one(options: dict[str, Any], length: int, padding: int) -> None:
    if options["uniform_attention"]:
        options["qk_norm"] = False
        options["positions"] = Positions.none if options["positions"] in BY_DISTANCE else options["positions"]
    if options["kv_heads"] is not None and options["heads"] % options["kv_heads"]:
        options["kv_heads"] = None
    model = decoder(seed=4, **options)
    row = [*words(seed=4, length=length)[0].tolist(), *[PAD] * padding]
    np.testing.assert_allclose(model(torch.tensor([row]))[0], slow_decoder(model, row), rtol=1e-12, atol=1e-11)


@pytest.mark.parametrize(("heads", "kv_heads"), [(1, None), (3, None), (3, 1), (7, None), (7, 7), (21, 3)])
@pytest.mark.parametrize("causal", [True, False])
def test_attention_equals_the_slow_one(heads: int, kv_heads: int | None, causal: bool) -> None:
    torch.manual_seed(4)
    attention = Attention(21, heads, kv_heads).requires_grad_(False)
    x, scores = torch.randn(2, 5, 21), torch.randn(heads, 5, 5)
    mask = attention_mask(torch.arange(5)[:, None] - torch.arange(5), causal=causal)
    none = torch.zeros(heads, 5, 5)
    for passed, bias in ((mask, none), (scores.masked_fill(~mask, -math.inf), scores)):
        hidden = bias.masked_fill(~mask, -math.inf).numpy()
        for row, mixed in zip(attention.qkv(x).numpy(), attention(x, passed), strict=True):
            parts = np.split(row.reshape(5, -1, 21 // heads), [heads, heads + (kv_heads or heads)], axis=1)
            slow = attention.out(torch.from_numpy(slow_attention(*parts, bias=hidden)))
            assert_close(mixed, slow, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("context", "width"), [(11, 10), (3, 2), (101, 14)])
def test_sinusoids_follow_the_formula(context: int, width: int) -> None:
    table = sinusoids(context, width).numpy()
    np.testing.assert_allclose(table, slow_sinusoids(context, width), rtol=0, atol=1e-12)


@pytest.mark.parametrize("heads", range(1, 40))
def test_alibi_slopes_follow_the_formula(heads: int) -> None:
    np.testing.assert_allclose(alibi_slopes(heads), slow_slopes(heads), rtol=1e-15, atol=0)


def test_alibi_slopes_of_the_paper() -> None:
    # Press et al. 2022, section 3: 1/2, 1/4 … 1/256 of 8 heads; of 16, 2^-0.5, 2^-1 … 2^-8.
    assert alibi_slopes(8).tolist() == [2.0**-n for n in range(1, 9)]
    np.testing.assert_allclose(alibi_slopes(16), [2 ** (-n / 2) for n in range(1, 17)], rtol=1e-15, atol=0)


@pytest.mark.parametrize("causal", [True, False])
def test_relative_buckets_follow_the_formula(causal: bool) -> None:
    distances = range(0 if causal else -1000, 1001)
    buckets = relative_bucket(torch.tensor(distances), causal=causal).tolist()
    assert buckets == [slow_bucket(distance, causal) for distance in distances]
    assert set(buckets) == set(range(32)) - (set() if causal else {16})  # distance 0 has no direction


# ---- the cache: what test_conformance.py does not ask ------------------------------------------------------


def test_a_model_that_is_not_causal_refuses_a_cache() -> None:
    model = decoder(causal=False)
    with pytest.raises(ValueError, match=r"model\.causal=false cannot use a cache"):
        model.new_cache(BATCH)
    with pytest.raises(ValueError, match=r"model\.causal=false cannot use a cache"):
        model(words(seed=7), decoder().new_cache(BATCH))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("places", PLACES, ids=str)
def test_more_tokens_than_the_context_are_refused(places: dict[str, Any], causal: bool) -> None:
    model = decoder(causal=causal, **places)
    assert model(words(seed=8)).shape == (BATCH, CONTEXT, VOCABULARY)
    with pytest.raises(ValueError, match="12 tokens are more than the 11"):
        model(words(seed=8, length=CONTEXT + 1))


@pytest.mark.parametrize(("capacity", "limit"), [(None, CONTEXT), (5, 5), (CONTEXT, CONTEXT), (17, CONTEXT)])
@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("window", [None, 3])
def test_more_tokens_than_cache_or_context_are_refused_and_leave_the_cache(
    window: int | None, capacity: int | None, limit: int, step: int
) -> None:
    model = decoder(window=window)
    tokens = words(seed=9, length=CONTEXT + 2)
    cache = model.new_cache(BATCH, capacity)
    model(tokens[:, : limit - 1], cache)
    with pytest.raises(ValueError, match=f"{limit + 1} tokens are more than the {limit}"):
        model(tokens[:, limit - 1 : limit + 1], cache)
    assert cache.length == limit - 1
    model(tokens[:, limit - 1 : limit], cache)
    with pytest.raises(ValueError, match=f"{limit + step} tokens are more than the {limit}"):
        model(tokens[:, limit : limit + step], cache)
    assert cache.length == limit


@pytest.mark.parametrize("options", [{}, {"window": 4}, {"uniform_attention": True}, LLAMA], ids=str)
@pytest.mark.parametrize("chunks", [(3, 2, 1, 5), (6, 1, 4), (1, 1, 1, 1, 1, 6)], ids=str)
def test_what_stands_in_unused_slots_changes_nothing(chunks: tuple[int, ...], options: dict[str, Any]) -> None:
    model = decoder(**options)
    clean, poisoned = model.new_cache(BATCH), model.new_cache(BATCH)
    poisoned.keys.fill_(torch.nan)
    poisoned.values.fill_(torch.nan)
    for part in words(seed=10).split(chunks, dim=1):
        assert torch.equal(model(part, clean), model(part, poisoned))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_cache_holds_the_heads_of_keys_and_values_and_no_more_than_the_window(options: dict[str, Any]) -> None:
    model = decoder(**options)
    config, cache = model.config, model.new_cache(BATCH, 7)
    shape = (config.depth, BATCH, config.kv_heads or config.heads, min(7, config.window or 7))
    head_width = config.width // config.heads
    assert cache.keys.shape == (*shape, 0 if config.uniform_attention else head_width)
    assert cache.values.shape == (*shape, head_width)
    assert cache.keys.dtype == cache.values.dtype == torch.float64
    assert (model.new_cache(1).capacity, cache.capacity) == (config.context, 7)


# ---- padding -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("norm_order", list(NormOrder))
@pytest.mark.parametrize("sight", SIGHTS, ids=str)
def test_the_embedding_of_padding_never_matters(sight: dict[str, Any], norm_order: NormOrder, tied: bool) -> None:
    model = decoder(norm_order=norm_order, tied_embeddings=tied, **sight)
    tokens = words(seed=11)
    tokens[0, 4:] = PAD
    tokens[2, 1:] = PAD
    real = tokens != PAD
    before = model(tokens)[real]
    model.token_embedding.weight[PAD] = 1e6 * torch.linspace(-1, 2, SIZES["width"])
    assert torch.equal(model(tokens)[real], before)


@pytest.mark.parametrize("sight", SIGHTS, ids=str)
def test_the_amount_of_padding_never_matters(sight: dict[str, Any]) -> None:
    model = decoder(**sight)
    tokens = words(seed=12, length=5)
    alone = model(tokens)
    for columns in range(1, CONTEXT - 5 + 1):
        padded = torch.nn.functional.pad(tokens, (0, columns), value=PAD)
        assert_close(model(padded)[:, :5], alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("sight", SIGHTS, ids=str)
def test_padding_is_finite_and_touches_no_other_row(sight: dict[str, Any]) -> None:
    model = decoder(**sight)
    tokens = words(seed=13)
    tokens[1] = PAD
    tokens[2, 3:] = PAD
    logits = model.requires_grad_()(tokens)[..., BEGIN + 1 :]
    assert logits.isfinite().all()
    for row in (0, 2):
        assert_close(logits[row], model(tokens[row : row + 1])[0, :, BEGIN + 1 :], rtol=0, atol=1e-12)
    logits.logsumexp(-1).sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("causal", [True, False])
def test_rows_of_a_batch_do_not_see_each_other(causal: bool) -> None:
    model = decoder(causal=causal)
    tokens = words(seed=14)
    together = model(tokens)
    for row in range(BATCH):
        assert_close(together[row : row + 1], model(tokens[row : row + 1]), rtol=0, atol=1e-12)


# ---- what is never generated -------------------------------------------------------------------------------


@pytest.mark.parametrize("never", [(), (PAD,), (PAD, BEGIN), (7, 2)])
@pytest.mark.parametrize("tied", [False, True])
def test_only_ids_never_generated_have_infinitely_low_logits(never: tuple[int, ...], tied: bool) -> None:
    config = ModelConfig(**SIZES, tied_embeddings=tied)
    model = Decoder(config, vocabulary_size=VOCABULARY, pad_id=PAD, never_generated=never)
    forbidden = torch.tensor([token in never for token in range(VOCABULARY)])
    logits = model(words(seed=15))
    assert (logits[..., forbidden] == -math.inf).all()
    assert logits[..., ~forbidden].isfinite().all()


# ---- parameters --------------------------------------------------------------------------------------------


def documented_shapes(config: ModelConfig, V: int) -> dict[str, tuple[int, ...]]:
    """The table at the top of model.py."""
    C, N, H, K = config.width, config.context, config.heads, config.kv_heads or config.heads
    D, F = C // H, int(config.feedforward_multiple * C)
    E = K * D if config.uniform_attention else (H + 2 * K) * D
    up = 2 * F if config.feedforward == FeedForwardName.swiglu else F
    shapes: dict[str, tuple[int, ...]] = {"token_embedding.weight": (V, C), "head.weight": (V, C)}
    if config.positions == Positions.learned:
        shapes["position_embedding.weight"] = (N, C)
    if config.positions == Positions.relative:
        shapes["relative_bias.weight"] = (32, H)
    norms = {"final_norm": C} if config.norm_order == NormOrder.pre else {}
    for block in (f"blocks.{i}" for i in range(config.depth)):
        shapes |= {
            f"{block}.attention.qkv.weight": (E, C),
            f"{block}.attention.qkv.bias": (E,),
            f"{block}.attention.out.weight": (C, C),
            f"{block}.attention.out.bias": (C,),
            f"{block}.feedforward.up.weight": (up, C),
            f"{block}.feedforward.up.bias": (up,),
            f"{block}.feedforward.down.weight": (C, F),
            f"{block}.feedforward.down.bias": (C,),
        }
        norms |= {f"{block}.attention_norm": C, f"{block}.feedforward_norm": C}
        if config.qk_norm:
            norms |= {f"{block}.attention.query_norm": D, f"{block}.attention.key_norm": D}
    shapes |= {f"{norm}.weight": (width,) for norm, width in norms.items()}
    if config.norm == Norm.layer:
        shapes |= {f"{norm}.bias": (width,) for norm, width in norms.items()}
    if not config.tied_embeddings:
        shapes["head.bias"] = (V,)
    return {name: shape for name, shape in shapes.items() if config.bias or not name.endswith(".bias")}


def parameter_count(model: Decoder) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_the_lesson_has_13772_parameters() -> None:
    model = Decoder(ModelConfig(), vocabulary_size=12, pad_id=PAD, never_generated=(PAD, BEGIN))
    assert parameter_count(model) == 13_772


PARAMETER_CASES = [
    places | {"norm_order": norm_order, "tied_embeddings": tied}
    for places, norm_order, tied in product(PLACES, NormOrder, (False, True))
]
PARAMETER_CASES += [*OPTIONS, {"context": 17}, {"width": 20}, {"causal": False}, {"dropout": 0.3}]


@pytest.mark.parametrize("options", PARAMETER_CASES, ids=str)
def test_the_state_dict_has_the_documented_names_and_shapes(options: dict[str, Any]) -> None:
    model = fresh(**options)
    shapes = documented_shapes(model.config, VOCABULARY)
    assert {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()} == shapes
    counted = sum(math.prod(shape) for shape in shapes.values())
    shared = VOCABULARY * model.config.width if model.config.tied_embeddings else 0
    assert parameter_count(model) == counted - shared


def test_tying_saves_the_matrix_and_the_bias_of_the_head() -> None:
    untied, tied = fresh(), fresh(tied_embeddings=True)
    assert parameter_count(untied) - parameter_count(tied) == VOCABULARY * SIZES["width"] + VOCABULARY


def test_tied_weights_are_one_tensor_also_after_a_state_dict_round_trip() -> None:
    saved = decoder(seed=16, tied_embeddings=True)
    loaded = fresh(seed=17, tied_embeddings=True)
    loaded.load_state_dict(saved.state_dict())
    for model in (saved, loaded, fresh(tied_embeddings=True).to(torch.float32)):
        assert model.head.weight is model.token_embedding.weight
        state = model.state_dict()
        assert state["head.weight"].data_ptr() == state["token_embedding.weight"].data_ptr()
    tokens = words(seed=16)
    assert torch.equal(loaded(tokens), saved(tokens))


def test_untied_weights_are_two_tensors() -> None:
    model = fresh()
    assert model.head.weight.data_ptr() != model.token_embedding.weight.data_ptr()
    assert not torch.equal(model.head.weight, model.token_embedding.weight)


# ---- before training ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("vocabulary", [12, 101])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("norm_order", list(NormOrder))
@pytest.mark.parametrize("options", [*PLACES, {"norm": Norm.rms}, LLAMA], ids=str)
def test_the_untrained_loss_is_about_the_log_of_what_can_be_generated(
    options: dict[str, Any], norm_order: NormOrder, tied: bool, vocabulary: int
) -> None:
    options = options | {"norm_order": norm_order, "tied_embeddings": tied}
    model = fresh(seed=18, vocabulary=vocabulary, **options | {"width": 32, "heads": 4}).requires_grad_(False)
    generator = torch.Generator().manual_seed(18)
    tokens = torch.randint(2, vocabulary, (53, CONTEXT + 1), generator=generator)
    loss = torch.nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    assert 0.9 <= float(loss) / math.log(vocabulary - 2) <= 1.15


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(
    "options",
    [{}, {"positions": Positions.relative, "qk_norm": True}, {"norm": Norm.rms, "feedforward": FeedForwardName.swiglu}],
    ids=str,
)
def test_fresh_weights_have_the_documented_spread(options: dict[str, Any], tied: bool) -> None:
    sizes = {"width": 50, "context": 53, "norm_order": NormOrder.pre, "tied_embeddings": tied}
    model = fresh(vocabulary=211, **sizes | options).requires_grad_(False)
    for name, parameter in model.named_parameters():
        owner = model.get_submodule(name.rpartition(".")[0])
        if isinstance(owner, torch.nn.LayerNorm | torch.nn.RMSNorm):
            assert (parameter == (1 if name.endswith("weight") else 0)).all(), name
            continue
        if isinstance(owner, torch.nn.Embedding):
            spread = 0.02 if tied and name == "token_embedding.weight" else 1.0
        else:
            largest = 1 / math.sqrt(owner.in_features)
            assert parameter.abs().max() <= largest, name
            spread = largest / math.sqrt(3)  # of a uniform number
        error = spread / math.sqrt(parameter.numel())  # of the mean; that of the deviation is smaller
        assert float(parameter.mean()) == pytest.approx(0, abs=4 * error), name
        assert float(parameter.std()) == pytest.approx(spread, abs=4 * error), name


@pytest.mark.parametrize(
    "options",
    [
        {"causal": False},
        {"heads": 2},
        {"kv_heads": 5},
        {"window": 3},
        {"positions": Positions.sinusoidal},
        {"positions": Positions.rotary},
        {"positions": Positions.alibi},
        {"qk_norm": True},
        {"norm": Norm.rms},
        {"norm_order": NormOrder.pre},
        {"feedforward": FeedForwardName.gelu_tanh},
        {"feedforward": FeedForwardName.relu},
        {"dropout": 0.3},
    ],
    ids=str,
)
def test_options_without_random_weights_leave_the_fresh_weights(options: dict[str, Any]) -> None:
    plain = fresh(seed=19, positions=Positions.none).state_dict()
    changed = fresh(seed=19, **({"positions": Positions.none} | options)).state_dict()
    different = {name for name in plain.keys() ^ changed.keys() if not re.search(r"norm\.(weight|bias)$", name)}
    assert not different
    assert all(torch.equal(plain[name], changed[name]) for name in plain.keys() & changed.keys())


# ---- each option changes what it says ----------------------------------------------------------------------


def test_causal_changes_the_mask_alone() -> None:
    # In one layer the last token sees all others with and without the mask.
    causal, open_ = decoder(depth=1), decoder(depth=1, causal=False)
    tokens = words(seed=20, length=5, batch=1)
    near = ((causal(tokens) - open_(tokens)).nan_to_num(0).abs() < 1e-12).all(-1)[0]
    assert near.tolist() == [False] * 4 + [True]


@pytest.mark.parametrize("positions", list(Positions))
def test_only_positions_tell_the_order_of_the_tokens_before(positions: Positions) -> None:
    # One layer: with more, the mask alone tells the order of what came before.
    model = decoder(depth=1, positions=positions)
    tokens = torch.tensor([[BEGIN, 5, 7, 3, 11]])
    swapped = torch.tensor([[BEGIN, 3, 5, 7, 11]])
    difference = furthest_apart(model(tokens)[:, -1], model(swapped)[:, -1])
    assert difference < 1e-12 if positions == Positions.none else difference > 1e-3


def test_a_learned_position_moves_no_logit_before_it() -> None:
    model = decoder()
    tokens = words(seed=21, length=6, batch=1)
    before = model(tokens)
    model.position_embedding.weight[4] += 1.0
    assert exactly_equal_positions(before, model(tokens)) == [True] * 4 + [False] * 2


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("places", PLACES, ids=str)
def test_a_larger_context_changes_nothing_that_fits_the_smaller(places: dict[str, Any], causal: bool) -> None:
    small, large = decoder(causal=causal, **places), decoder(causal=causal, context=17, **places)
    large.load_state_dict({k: v for k, v in small.state_dict().items() if "position" not in k}, strict=False)
    if places["positions"] == Positions.learned:
        large.position_embedding.weight[:CONTEXT] = small.position_embedding.weight
    tokens = words(seed=22)
    assert torch.equal(large(tokens), small(tokens))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("places", PLACES, ids=str)
def test_a_window_of_the_context_is_none(places: dict[str, Any], causal: bool) -> None:
    tokens = words(seed=25)
    whole = decoder(causal=causal, **places)(tokens)
    for window in (CONTEXT, CONTEXT + 1, 10**9):
        assert torch.equal(decoder(causal=causal, window=window, **places)(tokens), whole)
    assert not torch.equal(decoder(causal=causal, window=CONTEXT - 1, **places)(tokens), whole)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("places", PLACES, ids=str)
def test_a_window_of_1_leaves_a_token_to_itself(places: dict[str, Any], causal: bool) -> None:
    model = decoder(window=1, causal=causal, **places)
    tokens = words(seed=26, batch=1)
    changed = (tokens + 3) % (VOCABULARY - 2) + 2
    changed[0, 5] = tokens[0, 5]
    assert exactly_equal_positions(model(tokens), model(changed)) == [place == 5 for place in range(CONTEXT)]


@pytest.mark.parametrize("positions", BY_DISTANCE)
@pytest.mark.parametrize("causal", [True, False])
def test_a_token_that_sees_itself_alone_knows_no_distance(positions: Positions, causal: bool) -> None:
    sizes = {"width": 20, "window": 1, "causal": causal}
    model, placeless = decoder(positions=positions, **sizes), decoder(positions=Positions.none, **sizes)
    placeless.load_state_dict({k: v for k, v in model.state_dict().items() if k != "relative_bias.weight"})
    tokens = words(seed=27)
    assert_close(model(tokens), placeless(tokens), rtol=0, atol=1e-12)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("places", PLACES, ids=str)
def test_beyond_its_reach_a_place_is_as_good_as_any_other(places: dict[str, Any], causal: bool) -> None:
    """Through two layers of window 3, a token hears of four places on a side: without the rest all is the same.

    And so unless the place itself counts.
    """
    model = decoder(window=3, causal=causal, **places)
    tokens = words(seed=28)
    logits = model(tokens)
    absolute = places["positions"] in (Positions.learned, Positions.sinusoidal)
    for place in range(CONTEXT):
        first, end = max(0, place - 4), place + 1 if causal else place + 5
        difference = furthest_apart(model(tokens[:, first:end])[:, place - first], logits[:, place])
        assert difference > 1e-3 if absolute and first > 0 else difference < 1e-11


@pytest.mark.parametrize("positions", [Positions.learned, *BY_DISTANCE])
@pytest.mark.parametrize("causal", [True, False])
def test_a_token_one_place_further_than_the_window_is_out_of_sight(positions: Positions, causal: bool) -> None:
    model = decoder(window=3, depth=1, causal=causal, positions=positions)
    tokens = words(seed=29, batch=1)
    changed = tokens.clone()
    changed[0, 5] = 2 if tokens[0, 5] != 2 else 3
    same = [abs(place - 5) > 2 or (causal and place < 5) for place in range(CONTEXT)]
    assert exactly_equal_positions(model(tokens), model(changed)) == same


@pytest.mark.parametrize(("heads", "reach"), [(1, 1), (2, 3), (3, 7), (4, 15)])
@pytest.mark.parametrize("causal", [True, False])
def test_heads_of_uniform_attention_reach_1_3_7_15_tokens(heads: int, reach: int, causal: bool) -> None:
    model = decoder(depth=1, width=12, heads=heads, uniform_attention=True, causal=causal)
    tokens = words(seed=30, batch=1)
    changed = tokens.clone()
    changed[0, 8] = 2 if tokens[0, 8] != 2 else 3
    same = [abs(place - 8) >= reach or (causal and place < 8) for place in range(CONTEXT)]
    assert exactly_equal_positions(model(tokens), model(changed)) == same


def test_uniform_attention_asks_for_no_words() -> None:
    """It is linear in what it reads: what two tokens add up to is what they give each."""
    attention = Attention(12, 4, uniform=True, bias=False).requires_grad_(False)
    a, b = torch.randn(2, 1, 5, 12, generator=torch.Generator().manual_seed(31))
    mask = torch.zeros(4, 5, 5)
    assert_close(attention(a + 3 * b, mask), attention(a, mask) + 3 * attention(b, mask), rtol=0, atol=1e-12)
    mean = attention.out(attention.qkv(a).mean(1, keepdim=True))
    assert_close(attention(a, mask), mean.expand(1, 5, 12), rtol=0, atol=1e-12)


@pytest.mark.parametrize("uniform", [False, True])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_shared_heads_are_full_ones_with_the_same_weights(kv_heads: int, uniform: bool) -> None:
    sizes = {"width": 12, "heads": 4, "uniform_attention": uniform}
    shared, full = decoder(kv_heads=kv_heads, **sizes), decoder(seed=1, **sizes)
    state = shared.state_dict()
    for name in [name for name in state if ".qkv." in name]:
        queries, others = state[name].split([0 if uniform else 12, (1 if uniform else 2) * kv_heads * 3])
        copies = others.unflatten(0, (-1, kv_heads, 3)).repeat_interleave(4 // kv_heads, dim=1).flatten(0, 2)
        state[name] = torch.cat([queries, copies])
        assert kv_heads < 4 or torch.equal(state[name], shared.state_dict()[name])
    full.load_state_dict(state)
    tokens = words(seed=32)
    assert_close(full(tokens), shared(tokens), rtol=0, atol=1e-11)


@pytest.mark.parametrize("norm", list(Norm))
@pytest.mark.parametrize("rows", [slice(0, 5), slice(5, 10), slice(10, 15)], ids=["query 1", "query 2", "key 1"])
def test_a_norm_of_queries_and_keys_forgets_each_heads_scale(rows: slice, norm: Norm) -> None:
    tokens = words(seed=33)
    for qk_norm in (True, False):
        model = decoder(heads=2, norm=norm, qk_norm=qk_norm)

        def scale(rows: slice, factor: float, model: Decoder = model) -> None:
            for block in model.blocks:
                block.attention.qkv.weight[rows] *= factor
                block.attention.qkv.bias[rows] *= factor

        if qk_norm:
            scale(slice(0, 20), 1e4)  # so that the norm's 1e-5 is nothing
        before = model(tokens)
        scale(rows, 7)
        difference = furthest_apart(model(tokens), before)
        assert difference < 1e-9 if qk_norm else difference > 1e-3


def test_a_relative_bias_that_is_the_same_at_all_distances_changes_nothing() -> None:
    model, placeless = decoder(positions=Positions.relative), decoder(seed=1, positions=Positions.none)
    model.relative_bias.weight[:] = torch.randn(SIZES["heads"], generator=torch.Generator().manual_seed(34))
    placeless.load_state_dict({k: v for k, v in model.state_dict().items() if k != "relative_bias.weight"})
    tokens = words(seed=34)
    assert_close(model(tokens), placeless(tokens), rtol=0, atol=1e-11)


def test_without_bias_all_is_as_with_biases_of_0() -> None:
    for tied, norm_order in product((False, True), NormOrder):
        options: dict[str, Any] = {"heads": 2, "qk_norm": True, "tied_embeddings": tied, "norm_order": norm_order}
        bare, biased = decoder(bias=False, **options), decoder(seed=1, **options)
        assert not any(name.endswith("bias") for name in bare.state_dict())
        for name, parameter in biased.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
        biased.load_state_dict(bare.state_dict(), strict=False)
        tokens = words(seed=35)
        assert_close(biased(tokens), bare(tokens), rtol=0, atol=1e-12)


def test_rms_norm_is_layer_norm_of_what_has_mean_0() -> None:
    """Of x − mean x; made so by embeddings and maps onto the residual stream whose outputs have mean 0."""
    options: dict[str, Any] = {"positions": Positions.none, "norm_order": NormOrder.pre, "bias": False}
    rms, layer = decoder(norm=Norm.rms, **options), decoder(seed=1, **options)
    rms.token_embedding.weight -= rms.token_embedding.weight.mean(1, keepdim=True)
    for block in rms.blocks:
        for last in (block.attention.out, block.feedforward.down):
            last.weight -= last.weight.mean(0)
    layer.load_state_dict(rms.state_dict())
    tokens = words(seed=36)
    assert_close(layer(tokens), rms(tokens), rtol=0, atol=1e-11)
    rms.token_embedding.weight += 1.0
    layer.load_state_dict(rms.state_dict())
    assert furthest_apart(layer(tokens), rms(tokens)) > 1e-3


CHANGES: list[dict[str, Any]] = [
    {},
    {"causal": False},
    {"window": 3},
    *({"positions": positions} for positions in Positions if positions != LLAMA["positions"]),
    {"positions": Positions.none, "uniform_attention": True},
    {"qk_norm": True},
    {"kv_heads": 1},
    {"norm": Norm.layer},
    {"norm_order": NormOrder.post},
    {"bias": True},
    {"tied_embeddings": True},
    *({"feedforward": kind} for kind in FeedForwardName if kind != LLAMA["feedforward"]),
]


def test_every_option_says_something() -> None:
    tokens = words(seed=37)
    logits = [decoder(**{"width": 12, "heads": 3, **LLAMA, **change})(tokens) for change in CHANGES]
    for a, b in combinations(logits, 2):
        assert furthest_apart(a, b) > 1e-5


def test_dropout_acts_in_training_alone() -> None:
    tokens = words(seed=23)
    plain, dropping = decoder(), decoder(dropout=0.5)
    assert torch.equal(dropping(tokens), plain(tokens))
    assert torch.equal(plain.train()(tokens), plain.eval()(tokens))
    dropping.train()
    assert not torch.equal(dropping(tokens), plain(tokens))
    assert not torch.equal(dropping(tokens), dropping(tokens))


@pytest.mark.parametrize("norm_order", list(NormOrder))
@pytest.mark.parametrize("part", ["embedding", "attention", "feedforward"])
def test_dropout_acts_on_embeddings_and_both_parts_of_a_block(part: str, norm_order: NormOrder) -> None:
    """With the other two silenced, so that all randomness is that part's."""
    model = decoder(dropout=0.5, depth=1, norm_order=norm_order)
    if part != "embedding":
        model.dropout.p = 0.0
    for name in {"attention", "feedforward"} - {part}:
        last = model.blocks[0].attention.out if name == "attention" else model.blocks[0].feedforward.down
        last.weight.zero_()
        last.bias.zero_()
    torch.manual_seed(24)
    model.train()
    tokens = words(seed=24)
    assert not torch.equal(model(tokens), model(tokens))


# ---- what is refused ---------------------------------------------------------------------------------------

NO_QUERIES = "has no meaning with model.uniform_attention=true"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(({name: 0}, f"model.{name}=0: must be at least 1") for name in ("width", "heads", "kv_heads")),
        *(({name: -1}, f"model.{name}=-1: must be at least 1") for name in ("depth", "context", "window")),
        ({"heads": 5}, "model.heads=5: must divide model.width=32 evenly"),
        ({"kv_heads": 3}, "model.kv_heads=3: must divide model.heads=4 evenly"),
        ({"kv_heads": 8}, "model.kv_heads=8: must divide model.heads=4 evenly"),
        ({"dropout": 1.0}, "model.dropout=1.0: must be at least 0 and below 1"),
        ({"dropout": -0.1}, "model.dropout=-0.1: must be at least 0 and below 1"),
        ({"dropout": math.nan}, "model.dropout=nan: must be at least 0 and below 1"),
        *(
            ({"feedforward_multiple": multiple}, f"model.feedforward_multiple={multiple}: must be finite and give")
            for multiple in (0, -1.0, 0.01, math.inf, math.nan)
        ),
        (
            {"positions": Positions.sinusoidal, "width": 15, "heads": 3},
            "model.width=15: must be even with model.positions=sinusoidal",
        ),
        (
            {"positions": Positions.rotary, "width": 12, "heads": 4},
            "model.heads=4: leaves heads of width 3; with model.positions=rotary it must be even",
        ),
        *(
            ({"positions": positions, "uniform_attention": True}, f"model.positions={positions}: {NO_QUERIES}")
            for positions in BY_DISTANCE
        ),
        ({"qk_norm": True, "uniform_attention": True}, f"model.qk_norm=true: {NO_QUERIES}"),
    ],
    ids=str,
)
def test_a_refusal_names_the_option_its_value_and_what_is_allowed(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
        ModelConfig(**options)


@pytest.mark.parametrize(("multiple", "width"), [(4, 128), (2.5, 80), (8 / 3, 85), (2.9, 93), (1 / 32, 1)])
def test_the_width_of_the_feedforward_part_is_rounded(multiple: float, width: int) -> None:
    assert ModelConfig(feedforward_multiple=multiple).feedforward_width == width


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (0, 0)])
@pytest.mark.parametrize("uniform", [False, True])
def test_nothing_in_is_nothing_out(shape: tuple[int, int], uniform: bool) -> None:
    model = decoder(uniform_attention=uniform)
    assert model(torch.zeros(shape, dtype=torch.long)).shape == (*shape, VOCABULARY)
