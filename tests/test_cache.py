"""The cache by itself: what goes in comes out, in order, and nothing else does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from grammarlab.cache import KVCache

DEPTH, BATCH, HEADS, CAPACITY, KEY_WIDTH, VALUE_WIDTH = 2, 3, 5, 11, 7, 13
CHUNKS = [(11,), (1,) * 11, (3, 2, 1, 5), (1, 7), (4,), (1, 1, 1, 1, 7), (6, 1, 1, 3), (2, 2, 2, 2, 1)]
WINDOWS = [None, 1, 2, 4, 10, 11, 17]
in_chunks = pytest.mark.parametrize("chunks", CHUNKS, ids=str)
in_windows = pytest.mark.parametrize("window", WINDOWS)


def new_cache(
    window: int | None = None,
    *,
    capacity: int = CAPACITY,
    key_width: int = KEY_WIDTH,
    dtype: torch.dtype = torch.float64,
) -> KVCache:
    return KVCache(
        depth=DEPTH,
        batch=BATCH,
        kv_heads=HEADS,
        capacity=capacity,
        window=window,
        key_width=key_width,
        value_width=VALUE_WIDTH,
        dtype=dtype,
        device=torch.device("cpu"),
    )


def random_pair(seed: int, length: int = CAPACITY) -> tuple[Tensor, Tensor]:
    """Keys and values, each (B, K, length, D)."""
    generator = torch.Generator().manual_seed(seed)
    keys = torch.randn(BATCH, HEADS, length, KEY_WIDTH, generator=generator, dtype=torch.float64)
    values = torch.randn(BATCH, HEADS, length, VALUE_WIDTH, generator=generator, dtype=torch.float64)
    return keys, values


def slices(chunks: Sequence[int]) -> Iterator[slice]:
    end = 0
    for chunk in chunks:
        yield slice(end, end + chunk)
        end += chunk


def check_filling(cache: KVCache, chunks: Sequence[int], window: int | None) -> None:
    """All that a layer gives is what stood at `positions`; among these is all that a new token can see, once each."""
    pairs = [random_pair(seed, cache.capacity) for seed in range(DEPTH)]
    for part in slices(chunks):
        new = part.stop - part.start
        positions = cache.positions(new)
        for layer, (keys, values) in zip(cache.layers, pairs, strict=True):
            seen_keys, seen_values = layer.append(keys[:, :, part], values[:, :, part])
            assert torch.equal(seen_keys, keys[:, :, positions])
            assert torch.equal(seen_values, values[:, :, positions])
        slots = cache.capacity if window is None else min(window, cache.capacity)
        order = positions.tolist()
        visible = set(range(max(0, part.start - slots + 1), part.stop))
        assert len(set(order)) == len(order)
        assert visible <= set(order) <= set(range(part.stop))
        assert len(order) <= slots + (new if new > 1 else 0)
        if new == 1:
            assert set(order) == visible


@in_chunks
@in_windows
def test_append_returns_what_the_new_tokens_can_see(window: int | None, chunks: tuple[int, ...]) -> None:
    check_filling(new_cache(window), chunks, window)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    chunks=st.lists(st.integers(1, 9), min_size=1, max_size=9),
    window=st.none() | st.integers(1, 20),
    room=st.integers(0, 3),
)
def test_any_chunks_and_any_window(chunks: list[int], window: int | None, room: int) -> None:
    check_filling(new_cache(window, capacity=sum(chunks) + room), chunks, window)


@in_chunks
@pytest.mark.parametrize("window", [None, 11, 17])
def test_without_a_narrower_window_all_tokens_come_in_order(window: int | None, chunks: tuple[int, ...]) -> None:
    cache = new_cache(window)
    keys, values = random_pair(seed=1)
    for part in slices(chunks):
        assert cache.positions(part.stop - part.start).tolist() == list(range(part.stop))
        seen_keys, seen_values = cache.layers[0].append(keys[:, :, part], values[:, :, part])
        assert torch.equal(seen_keys, keys[:, :, : part.stop])
        assert torch.equal(seen_values, values[:, :, : part.stop])


def test_a_token_takes_the_place_of_the_one_that_left_the_window() -> None:
    cache = new_cache(window=3)
    order = []
    for token in range(7):
        order.append(cache.positions(1).tolist())
        pair = torch.full((BATCH, HEADS, 1, KEY_WIDTH), token), torch.full((BATCH, HEADS, 1, VALUE_WIDTH), token)
        for layer in cache.layers:
            layer.append(*pair)
    assert order == [[0], [0, 1], [0, 1, 2], [3, 1, 2], [3, 4, 2], [3, 4, 5], [6, 4, 5]]
    assert cache.keys[1, 0, 0, :, 0].tolist() == cache.values[1, 0, 0, :, 0].tolist() == [6, 4, 5]


@pytest.mark.parametrize(("seen", "new"), [(3, 1), (4, 1), (4, 2)])  # with room, in place of the oldest, in a chunk
def test_positions_are_on_the_device_asked_for(seen: int, new: int) -> None:
    cache = new_cache(window=4)
    cache.layers[0].append(*random_pair(seed=9, length=seen))
    assert cache.positions(new, torch.device("meta")).device.type == "meta"


@in_chunks
@in_windows
def test_length_is_the_number_of_tokens_seen(window: int | None, chunks: tuple[int, ...]) -> None:
    cache = new_cache(window)
    keys, values = random_pair(seed=2)
    assert cache.length == 0
    for part in slices(chunks):
        for layer in cache.layers:
            layer.append(keys[:, :, part], values[:, :, part])
        assert cache.length == part.stop
        assert [layer.length for layer in cache.layers] == [part.stop] * DEPTH


def test_caches_do_not_touch_each_other() -> None:
    first, second = new_cache().layers[0], new_cache().layers[0]
    keys, values = random_pair(seed=3)
    kept_keys, kept_values = first.append(keys, values)
    second.append(-keys, -values)
    assert torch.equal(kept_keys, keys)
    assert torch.equal(kept_values, values)


@in_chunks
@in_windows
def test_a_layer_never_returns_a_slot_that_was_not_written(window: int | None, chunks: tuple[int, ...]) -> None:
    cache = new_cache(window)
    cache.keys.fill_(torch.nan)
    cache.values.fill_(torch.nan)
    keys, values = random_pair(seed=4)
    for part in slices(chunks):
        for seen in cache.layers[0].append(keys[:, :, part], values[:, :, part]):
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
    assert (cache.keys == 0).all()
    assert (cache.values == 0).all()


@pytest.mark.parametrize("key_width", [KEY_WIDTH, 0])
@in_windows
def test_memory_is_that_of_the_window(window: int | None, key_width: int) -> None:
    cache = new_cache(window, key_width=key_width)
    slots = CAPACITY if window is None else min(CAPACITY, window)
    assert cache.slots == slots
    for tensor, width in ((cache.keys, key_width), (cache.values, VALUE_WIDTH)):
        assert tensor.shape == (DEPTH, BATCH, HEADS, slots, width)
        assert tensor.untyped_storage().nbytes() == 8 * DEPTH * BATCH * HEADS * slots * width


@pytest.mark.parametrize("chunk", [1, 2])
@in_windows
def test_growing_copies_nothing_and_all_layers_share_one_allocation(window: int | None, chunk: int) -> None:
    cache = new_cache(window, capacity=CAPACITY + 1)
    whole = [tensor.untyped_storage().data_ptr() for tensor in (cache.keys, cache.values)]
    keys, values = random_pair(seed=6, length=chunk)
    while cache.length < CAPACITY + 1:
        for index, layer in enumerate(cache.layers):
            seen = layer.append(keys, values)
            if chunk == 1 or layer.length <= cache.slots:
                starts = [cache.keys[index].data_ptr(), cache.values[index].data_ptr()]
                assert [part.data_ptr() for part in seen] == starts
                assert [part.untyped_storage().data_ptr() for part in seen] == whole
    assert [tensor.untyped_storage().data_ptr() for tensor in (cache.keys, cache.values)] == whole


@in_windows
def test_a_chunk_larger_than_the_window_leaves_its_last_tokens(window: int | None) -> None:
    cache = new_cache(window)
    keys, values = random_pair(seed=8)
    cache.layers[0].append(keys[:, :, :2], values[:, :, :2])
    cache.layers[0].append(keys[:, :, 2:], values[:, :, 2:])
    for token in range(CAPACITY - cache.slots, CAPACITY):
        assert torch.equal(cache.keys[0, :, :, token % cache.slots], keys[:, :, token])
        assert torch.equal(cache.values[0, :, :, token % cache.slots], values[:, :, token])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [None, 2])
def test_what_comes_out_has_the_type_of_the_cache(window: int | None, dtype: torch.dtype) -> None:
    cache = new_cache(window, dtype=dtype)
    keys, values = random_pair(seed=7, length=3)
    for part in (slice(0, 1), slice(1, 2), slice(2, 3), slice(0, 3)):
        seen_keys, seen_values = cache.layers[0].append(keys[:, :, part].to(dtype), values[:, :, part].to(dtype))
        assert seen_keys.dtype == seen_values.dtype == dtype
    assert torch.equal(seen_keys[:, :, -3:], keys.to(dtype))
    assert torch.equal(seen_values[:, :, -3:], values.to(dtype))
