"""The cache by itself: what goes in comes out, in order, and nothing else does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from grammarlab.cache import KVCache, LayerCache

DEPTH, BATCH, HEADS, CAPACITY, HEAD_WIDTH = 2, 3, 5, 11, 7
CHUNKS = [(11,), (1,) * 11, (3, 2, 1, 5), (1, 7), (4,)]


def new_cache(dtype: torch.dtype = torch.float64) -> KVCache:
    return KVCache(
        depth=DEPTH,
        batch=BATCH,
        heads=HEADS,
        capacity=CAPACITY,
        head_width=HEAD_WIDTH,
        dtype=dtype,
        device=torch.device("cpu"),
    )


def random_pair(seed: int, length: int = CAPACITY) -> tuple[Tensor, Tensor]:
    """Keys and values, each (B, H, length, D)."""
    generator = torch.Generator().manual_seed(seed)
    keys, values = torch.randn(2, BATCH, HEADS, length, HEAD_WIDTH, generator=generator, dtype=torch.float64)
    return keys, values


def slices(chunks: tuple[int, ...]) -> Iterator[slice]:
    end = 0
    for chunk in chunks:
        yield slice(end, end + chunk)
        end += chunk


@pytest.mark.parametrize("chunks", CHUNKS)
def test_append_returns_every_token_so_far_in_order(chunks: tuple[int, ...]) -> None:
    layer = new_cache().layers[-1]
    keys, values = random_pair(seed=1)
    for part in slices(chunks):
        seen_keys, seen_values = layer.append(keys[:, :, part], values[:, :, part])
        assert torch.equal(seen_keys, keys[:, :, : part.stop])
        assert torch.equal(seen_values, values[:, :, : part.stop])


@pytest.mark.parametrize("chunks", CHUNKS)
def test_length_is_the_number_of_tokens_seen(chunks: tuple[int, ...]) -> None:
    cache = new_cache()
    keys, values = random_pair(seed=2)
    assert cache.length == 0
    for part in slices(chunks):
        for layer in cache.layers:
            layer.append(keys[:, :, part], values[:, :, part])
        assert cache.length == part.stop
        assert [layer.length for layer in cache.layers] == [part.stop] * DEPTH


def test_layers_do_not_touch_each_other() -> None:
    cache = new_cache()
    pairs = [random_pair(seed) for seed in range(DEPTH)]
    for part in slices((3, 2, 1, 5)):
        for layer, (keys, values) in zip(cache.layers, pairs, strict=True):
            seen_keys, seen_values = layer.append(keys[:, :, part], values[:, :, part])
            assert torch.equal(seen_keys, keys[:, :, : part.stop])
            assert torch.equal(seen_values, values[:, :, : part.stop])


def test_caches_do_not_touch_each_other() -> None:
    first, second = new_cache().layers[0], new_cache().layers[0]
    keys, values = random_pair(seed=3)
    kept_keys, kept_values = first.append(keys, values)
    second.append(-keys, -values)
    assert torch.equal(kept_keys, keys)
    assert torch.equal(kept_values, values)


def test_a_layer_never_returns_a_slot_that_was_not_written() -> None:
    unwritten = torch.full((2, BATCH, HEADS, CAPACITY, HEAD_WIDTH), torch.nan, dtype=torch.float64)
    layer = LayerCache(unwritten[0], unwritten[1])
    keys, values = random_pair(seed=4)
    for part in slices((1, 5, 2)):
        for seen in layer.append(keys[:, :, part], values[:, :, part]):
            assert torch.isfinite(seen).all()


def test_a_new_cache_holds_no_leftover_memory() -> None:
    # In this mode torch fills memory that nobody initialises with NaN.
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.empty(1).isnan().all()
        cache = new_cache()
    finally:
        torch.use_deterministic_algorithms(before)
    keys, values = random_pair(seed=5, length=1)
    seen_keys, _ = cache.layers[0].append(keys, values)
    memory = torch.empty(0, dtype=torch.float64).set_(seen_keys.untyped_storage())
    assert memory.numel() == DEPTH * 2 * BATCH * HEADS * CAPACITY * HEAD_WIDTH
    assert torch.count_nonzero(memory) == 2 * keys.numel()
    assert torch.isfinite(memory).all()


def test_growing_copies_nothing_and_all_layers_share_one_allocation() -> None:
    cache = new_cache()
    keys, values = random_pair(seed=6, length=1)
    steps = [[layer.append(keys, values) for layer in cache.layers] for _ in range(CAPACITY)]
    starts = {tuple(seen.data_ptr() for pair in step for seen in pair) for step in steps}
    assert len(starts) == 1
    storages = {seen.untyped_storage().data_ptr() for step in steps for pair in step for seen in pair}
    assert len(storages) == 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_what_comes_out_has_the_type_of_the_cache(dtype: torch.dtype) -> None:
    keys, values = random_pair(seed=7, length=2)
    seen_keys, seen_values = new_cache(dtype).layers[0].append(keys.to(dtype), values.to(dtype))
    assert seen_keys.dtype == seen_values.dtype == dtype
    assert torch.equal(seen_keys, keys.to(dtype))
