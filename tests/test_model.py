"""The decoder: its laws, and the same function written again slowly in numpy."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.testing import assert_close

from grammarlab.cache import LayerCache
from grammarlab.config import ModelConfig, NormOrder, Positions
from grammarlab.model import Attention, Decoder, attention_mask, sinusoids

PAD, BEGIN = 0, 1
BATCH, VOCABULARY, CONTEXT = 3, 13, 11
SIZES = {"width": 10, "heads": 5, "depth": 2, "context": CONTEXT, "feedforward_multiple": 3}
POSITIONS_AND_NORMS = list(product(Positions, NormOrder))
CHUNKS = [(11,), (1,) * 11, (3, 2, 1, 5), (1, 10), (7, 1, 1)]


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


# ---- the mask ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("causal", "table"),
    [
        (True, ["1"]),
        (True, ["100", "110", "111"]),
        (True, ["1110", "1111"]),
        (True, ["11110", "11111"]),
        (True, ["11111"]),  # one new token sees all that came before it
        (False, ["111", "111", "111"]),
        (False, ["11111", "11111"]),
    ],
)
def test_the_mask_is_the_drawn_table(causal: bool, table: list[str]) -> None:
    drawn = torch.tensor([[sign == "1" for sign in row] for row in table])
    assert torch.equal(attention_mask(len(table), len(table[0]), causal=causal), drawn)


# ---- causality ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize(("positions", "norm_order"), POSITIONS_AND_NORMS)
def test_a_changed_token_moves_no_earlier_logit_if_and_only_if_causal(
    positions: Positions, norm_order: NormOrder, depth: int, causal: bool
) -> None:
    model = decoder(positions=positions, norm_order=norm_order, depth=depth, causal=causal)
    tokens = words(seed=1, length=6, batch=1)
    changed = tokens.clone()
    changed[0, 4] = 2 if tokens[0, 4] != 2 else 3
    assert exactly_equal_positions(model(tokens), model(changed)) == [causal] * 4 + [False] * 2


@pytest.mark.parametrize(("positions", "norm_order"), POSITIONS_AND_NORMS)
def test_no_score_is_large_enough_to_see_behind_the_mask(positions: Positions, norm_order: NormOrder) -> None:
    model = decoder(positions=positions, norm_order=norm_order)
    for block in model.blocks:
        block.attention.qkv.weight[: 2 * SIZES["width"]] *= 1e4  # queries and keys
        block.attention.qkv.bias[: 2 * SIZES["width"]] *= 1e4
    tokens = words(seed=2, length=6, batch=1)
    for token in range(2, VOCABULARY):
        changed = tokens.clone()
        changed[0, 4] = token
        assert exactly_equal_positions(model(tokens), model(changed))[:4] == [True] * 4
    assert not model(tokens).isnan().any()


# ---- against the slow one ----------------------------------------------------------------------------------

Array = NDArray[np.float64]


def softmax(scores: Array) -> Array:
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


def slow_attention(qkv: Array, heads: int, visible: Sequence[Sequence[int]]) -> Array:
    """(T, 3 C) projections to (T, C), query by query and head by head."""
    q, k, v = np.split(qkv, 3, axis=1)
    head_width = q.shape[1] // heads
    y = np.zeros_like(q)
    for head, t in product(range(heads), range(len(q))):
        columns, seen = slice(head * head_width, (head + 1) * head_width), list(visible[t])
        scores = np.array([q[t, columns] @ k[s, columns] for s in seen]) / math.sqrt(head_width)
        y[t, columns] = softmax(scores) @ v[seen, columns]
    return y


def slow_decoder(model: Decoder, tokens: Sequence[int]) -> Array:
    """(T, V) logits of one row, from the documented names of the state dict alone."""
    config = model.config
    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    length = len(tokens)

    def linear(name: str, x: Array) -> Array:
        return x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", 0.0)

    def norm(name: str, x: Array) -> Array:
        centred = x - x.mean(1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5)
        return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def gelu(x: Array) -> Array:
        return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2

    def visible_from(t: int) -> list[int]:
        return [s for s in range(length) if (s <= t if config.causal else tokens[s] != PAD)]

    visible = [visible_from(t) for t in range(length)]
    x = weights["token_embedding.weight"][list(tokens)]
    if config.positions == Positions.learned:
        x = x + weights["position_embedding.weight"][:length]
    elif config.positions == Positions.sinusoidal:
        x = x + slow_sinusoids(length, config.width)
    for index in range(config.depth):
        name = f"blocks.{index}"

        def attention(x: Array, name: str = name) -> Array:
            y = slow_attention(linear(f"{name}.attention.qkv", x), config.heads, visible)
            return linear(f"{name}.attention.out", y)

        def feedforward(x: Array, name: str = name) -> Array:
            return linear(f"{name}.feedforward.down", gelu(linear(f"{name}.feedforward.up", x)))

        if config.norm_order == NormOrder.pre:
            x = x + attention(norm(f"{name}.attention_norm", x))
            x = x + feedforward(norm(f"{name}.feedforward_norm", x))
        else:
            x = norm(f"{name}.attention_norm", x + attention(x))
            x = norm(f"{name}.feedforward_norm", x + feedforward(x))
    if config.norm_order == NormOrder.pre:
        x = norm("final_norm", x)
    logits = linear("head", x)
    logits[:, [PAD, BEGIN]] = -math.inf
    return logits


def slow_sinusoids(context: int, width: int) -> Array:
    table = np.zeros((context, width))
    for position, column in product(range(context), range(width)):
        angle = position / 10_000 ** ((column - column % 2) / width)
        table[position, column] = math.sin(angle) if column % 2 == 0 else math.cos(angle)
    return table


SLOW_CASES: list[dict[str, Any]] = [
    {"positions": positions, "norm_order": norm_order, "causal": causal}
    for (positions, norm_order), causal in product(POSITIONS_AND_NORMS, (True, False))
]
SLOW_CASES += [
    {"heads": 1},
    {"heads": 2},
    {"heads": 10},
    {"depth": 1},
    {"depth": 3},
    {"feedforward_multiple": 1},
]
SLOW_CASES += [{"tied_embeddings": True, "norm_order": norm_order} for norm_order in NormOrder]


@pytest.mark.parametrize("options", SLOW_CASES, ids=str)
def test_the_decoder_equals_the_slow_one(options: dict[str, Any]) -> None:
    model = decoder(seed=3, **options)
    tokens = words(seed=3, length=7)
    tokens[1, 5:] = PAD
    logits = model(tokens).numpy()
    for row, fast in zip(tokens.tolist(), logits, strict=True):
        np.testing.assert_allclose(fast, slow_decoder(model, row), rtol=1e-12, atol=1e-11)


@pytest.mark.parametrize("heads", [1, 3, 7])
@pytest.mark.parametrize("causal", [True, False])
def test_attention_equals_the_slow_one(heads: int, causal: bool) -> None:
    torch.manual_seed(4)
    attention = Attention(width=21, heads=heads).requires_grad_(False)
    x = torch.randn(2, 5, 21)
    fast = attention(x, attention_mask(5, 5, causal=causal))
    visible = [range(t + 1) if causal else range(5) for t in range(5)]
    for row, mixed in zip(attention.qkv(x).numpy(), fast, strict=True):
        slow = attention.out(torch.from_numpy(slow_attention(row, heads, visible)))
        assert_close(mixed, slow, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("context", "width"), [(11, 10), (3, 2), (101, 14)])
def test_sinusoids_follow_the_formula(context: int, width: int) -> None:
    table = sinusoids(context, width).numpy()
    np.testing.assert_allclose(table, slow_sinusoids(context, width), rtol=0, atol=1e-12)


# ---- the cache ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunks", CHUNKS)
@pytest.mark.parametrize(("positions", "norm_order"), POSITIONS_AND_NORMS)
def test_cached_logits_equal_uncached_ones(
    positions: Positions, norm_order: NormOrder, chunks: tuple[int, ...]
) -> None:
    model = decoder(positions=positions, norm_order=norm_order)
    tokens = words(seed=5)
    full = model(tokens)
    cache = model.new_cache(BATCH)
    end = 0
    for chunk in chunks:
        start, end = end, end + chunk
        assert_close(model(tokens[:, start:end], cache), full[:, start:end], rtol=0, atol=1e-10)
        assert cache.length == end


@pytest.mark.parametrize(("positions", "norm_order"), POSITIONS_AND_NORMS)
def test_a_cached_step_equals_a_full_pass_of_that_length(positions: Positions, norm_order: NormOrder) -> None:
    model = decoder(seed=6, positions=positions, norm_order=norm_order)
    tokens = words(seed=6)
    cache = model.new_cache(BATCH)
    for length in range(1, CONTEXT + 1):
        step = model(tokens[:, length - 1 : length], cache)[:, -1]
        assert_close(step, model(tokens[:, :length])[:, -1], rtol=0, atol=1e-10)


def test_a_model_that_is_not_causal_refuses_a_cache() -> None:
    model = decoder(causal=False)
    with pytest.raises(ValueError, match=r"model\.causal=false cannot use a cache"):
        model.new_cache(BATCH)
    with pytest.raises(ValueError, match=r"model\.causal=false cannot use a cache"):
        model(words(seed=7), decoder().new_cache(BATCH))


@pytest.mark.parametrize("causal", [True, False])
def test_more_tokens_than_the_context_are_refused(causal: bool) -> None:
    model = decoder(causal=causal)
    assert model(words(seed=8)).shape == (BATCH, CONTEXT, VOCABULARY)
    with pytest.raises(ValueError, match="12 tokens are more than the 11"):
        model(words(seed=8, length=CONTEXT + 1))


@pytest.mark.parametrize(("capacity", "limit"), [(None, CONTEXT), (5, 5), (CONTEXT, CONTEXT), (17, CONTEXT)])
@pytest.mark.parametrize("step", [1, 2])
def test_more_tokens_than_cache_or_context_are_refused_and_leave_the_cache(
    capacity: int | None, limit: int, step: int
) -> None:
    model = decoder()
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


def test_what_stands_in_unused_slots_changes_nothing() -> None:
    model = decoder()
    tokens = words(seed=10)
    clean, poisoned = model.new_cache(BATCH), model.new_cache(BATCH)
    shape = (2, BATCH, SIZES["heads"], CONTEXT, SIZES["width"] // SIZES["heads"])
    poisoned.layers = [LayerCache(*torch.full(shape, torch.nan)) for _ in poisoned.layers]
    for part in (tokens[:, :3], tokens[:, 3:5], tokens[:, 5:6]):
        assert torch.equal(model(part, clean), model(part, poisoned))


# ---- padding -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("positions", "norm_order"), POSITIONS_AND_NORMS)
def test_the_embedding_of_padding_never_matters(
    positions: Positions, norm_order: NormOrder, causal: bool, tied: bool
) -> None:
    model = decoder(positions=positions, norm_order=norm_order, causal=causal, tied_embeddings=tied)
    tokens = words(seed=11)
    tokens[0, 4:] = PAD
    tokens[2, 1:] = PAD
    real = tokens != PAD
    before = model(tokens)[real]
    model.token_embedding.weight[PAD] = 1e6 * torch.linspace(-1, 2, SIZES["width"])
    assert torch.equal(model(tokens)[real], before)


@pytest.mark.parametrize("causal", [True, False])
def test_the_amount_of_padding_never_matters(causal: bool) -> None:
    model = decoder(causal=causal)
    tokens = words(seed=12, length=5)
    alone = model(tokens)
    for columns in range(1, CONTEXT - 5 + 1):
        padded = torch.nn.functional.pad(tokens, (0, columns), value=PAD)
        assert_close(model(padded)[:, :5], alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("causal", [True, False])
def test_a_row_of_padding_is_finite_and_touches_no_other_row(causal: bool) -> None:
    model = decoder(causal=causal)
    tokens = words(seed=13)
    tokens[1] = PAD
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
    C, M, N = config.width, config.feedforward_multiple, config.context
    shapes: dict[str, tuple[int, ...]] = {"token_embedding.weight": (V, C), "head.weight": (V, C)}
    if config.positions == Positions.learned:
        shapes["position_embedding.weight"] = (N, C)
    for i in range(config.depth):
        shapes |= {
            f"blocks.{i}.attention.qkv.weight": (3 * C, C),
            f"blocks.{i}.attention.qkv.bias": (3 * C,),
            f"blocks.{i}.attention.out.weight": (C, C),
            f"blocks.{i}.attention.out.bias": (C,),
            f"blocks.{i}.attention_norm.weight": (C,),
            f"blocks.{i}.attention_norm.bias": (C,),
            f"blocks.{i}.feedforward.up.weight": (M * C, C),
            f"blocks.{i}.feedforward.up.bias": (M * C,),
            f"blocks.{i}.feedforward.down.weight": (C, M * C),
            f"blocks.{i}.feedforward.down.bias": (C,),
            f"blocks.{i}.feedforward_norm.weight": (C,),
            f"blocks.{i}.feedforward_norm.bias": (C,),
        }
    if config.norm_order == NormOrder.pre:
        shapes |= {"final_norm.weight": (C,), "final_norm.bias": (C,)}
    if not config.tied_embeddings:
        shapes["head.bias"] = (V,)
    return shapes


def parameter_count(model: Decoder) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_the_lesson_has_13772_parameters() -> None:
    model = Decoder(ModelConfig(), vocabulary_size=12, pad_id=PAD, never_generated=(PAD, BEGIN))
    assert parameter_count(model) == 13_772


PARAMETER_CASES = [
    {"positions": positions, "norm_order": norm_order, "tied_embeddings": tied}
    for (positions, norm_order), tied in product(POSITIONS_AND_NORMS, (False, True))
]
PARAMETER_CASES += [{"heads": 2}, {"heads": 1}, {"depth": 3}, {"depth": 1}, {"context": 17}]
PARAMETER_CASES += [{"width": 20}, {"feedforward_multiple": 7}, {"causal": False}, {"dropout": 0.3}]


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
@pytest.mark.parametrize(("positions", "norm_order"), POSITIONS_AND_NORMS)
def test_the_untrained_loss_is_about_the_log_of_what_can_be_generated(
    positions: Positions, norm_order: NormOrder, tied: bool, vocabulary: int
) -> None:
    options = {"positions": positions, "norm_order": norm_order, "tied_embeddings": tied}
    model = fresh(seed=18, vocabulary=vocabulary, width=32, heads=4, **options).requires_grad_(False)
    generator = torch.Generator().manual_seed(18)
    tokens = torch.randint(2, vocabulary, (53, CONTEXT + 1), generator=generator)
    loss = torch.nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    assert 0.9 <= float(loss) / math.log(vocabulary - 2) <= 1.15


@pytest.mark.parametrize("tied", [False, True])
def test_fresh_weights_have_the_documented_spread(tied: bool) -> None:
    options = {"width": 50, "context": 53, "norm_order": NormOrder.pre, "tied_embeddings": tied}
    model = fresh(vocabulary=211, **options).requires_grad_(False)
    for name, parameter in model.named_parameters():
        owner = model.get_submodule(name.rpartition(".")[0])
        if isinstance(owner, torch.nn.LayerNorm):
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


@pytest.mark.parametrize("options", [{"causal": False}, {"heads": 2}, {"dropout": 0.3}], ids=str)
def test_options_without_weights_leave_the_fresh_weights(options: dict[str, Any]) -> None:
    plain, changed = fresh(seed=19).state_dict(), fresh(seed=19, **options).state_dict()
    assert plain.keys() == changed.keys()
    assert all(torch.equal(plain[name], changed[name]) for name in plain)


# ---- each option changes what it says ----------------------------------------------------------------------


def test_causal_changes_the_mask_alone() -> None:
    # In one layer the last token sees all others with and without the mask.
    causal, open_ = decoder(depth=1), decoder(depth=1, causal=False)
    tokens = words(seed=20, length=5, batch=1)
    near = ((causal(tokens) - open_(tokens)).nan_to_num(0).abs() < 1e-12).all(-1)[0]
    assert near.tolist() == [False] * 4 + [True]


@pytest.mark.parametrize(("positions", "ordered"), [("none", False), ("learned", True), ("sinusoidal", True)])
def test_only_positions_tell_the_order_of_the_tokens_before(positions: str, ordered: bool) -> None:
    # One layer: with more, the mask alone tells the order of what came before.
    model = decoder(depth=1, positions=Positions(positions))
    tokens = torch.tensor([[BEGIN, 5, 7, 3, 11]])
    swapped = torch.tensor([[BEGIN, 3, 5, 7, 11]])
    difference = (model(tokens) - model(swapped))[0, -1].nan_to_num(0).abs().max()
    assert (difference > 1e-3) == ordered
    assert ordered or difference < 1e-12


def test_a_learned_position_moves_no_logit_before_it() -> None:
    model = decoder()
    tokens = words(seed=21, length=6, batch=1)
    before = model(tokens)
    model.position_embedding.weight[4] += 1.0
    assert exactly_equal_positions(before, model(tokens)) == [True] * 4 + [False] * 2


@pytest.mark.parametrize("positions", list(Positions))
def test_a_larger_context_changes_nothing_that_fits_the_smaller(positions: Positions) -> None:
    small, large = decoder(positions=positions), decoder(positions=positions, context=17)
    large.load_state_dict({k: v for k, v in small.state_dict().items() if "position" not in k}, strict=False)
    if positions == Positions.learned:
        large.position_embedding.weight[:CONTEXT] = small.position_embedding.weight
    tokens = words(seed=22)
    assert torch.equal(large(tokens), small(tokens))


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
