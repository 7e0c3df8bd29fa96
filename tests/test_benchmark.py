"""What the benchmarks compare is the same; how they compare it is by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from grammarlab.benchmark import cache
from grammarlab.benchmark.paired import in_turn, summary
from grammarlab.benchmark.peers import (
    GPT,
    LLAMA,
    greedy_of,
    litgpt_greedy,
    new_model,
    transformers_greedy,
    x_transformers_greedy,
)
from grammarlab.config import ModelConfig

SIZES: list[dict[str, Any]] = [
    {"width": 12, "heads": 3, "depth": 1, "context": 9},
    {"width": 32, "heads": 4, "depth": 3, "context": 20, "feedforward_multiple": 2},
]


@pytest.mark.parametrize("rows", [1, 3, 20])
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("peer", ["transformers", "x-transformers", "litgpt", "without a cache"])
def test_every_peer_generates_our_tokens(peer: str, size: dict[str, Any], rows: int) -> None:
    model = new_model(ModelConfig(**size, **(LLAMA if peer == "litgpt" else GPT)), vocabulary=11, seed=1).double()
    prompts = torch.randint(0, 11, (rows, 3), generator=torch.Generator().manual_seed(1))
    theirs = {
        "transformers": transformers_greedy,
        "x-transformers": x_transformers_greedy,
        "litgpt": lambda model: litgpt_greedy(model, rows),
        "without a cache": lambda model: greedy_of(model, cache=False),
    }[peer](model)
    new = size["context"] - 3
    tokens = greedy_of(model)(prompts, new)
    assert torch.equal(tokens, theirs(prompts, new))
    assert tokens.shape == (rows, size["context"])
    assert len(tokens.unique()) > 4  # not one token again and again


@pytest.mark.parametrize("seen, length", [(0, 7), (6, 1), (0, 1)])
@pytest.mark.parametrize("options", [{}, {"kv_heads": 2, "depth": 3, "feedforward_multiple": 2}], ids=str)
def test_operations_are_those_that_torch_counts(options: dict[str, Any], seen: int, length: int) -> None:
    config = ModelConfig(width=32, heads=4, context=20, **options)
    model = new_model(config, vocabulary=cache._VOCABULARY, seed=1)
    kv_cache = model.new_cache(1)
    if seen:
        model(torch.ones(1, seen, dtype=torch.long), kv_cache)
    with FlopCounterMode(display=False) as counter, torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        model.logits(model.hidden(torch.ones(1, length, dtype=torch.long), kv_cache)[:, -1:])
    assert cache.operations(config, length, seen) == counter.get_total_flops()


def test_the_seconds_without_a_cache_are_those_of_all_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock by which a pass over n tokens takes 3 n + 2 seconds, however many lengths are timed."""
    model = new_model(ModelConfig(context=60), vocabulary=cache._VOCABULARY, seed=1)
    now = 0.0

    def hidden(tokens: torch.Tensor) -> torch.Tensor:
        nonlocal now
        now += 3 * tokens.shape[1] + 2
        return torch.zeros(*tokens.shape, 32)

    monkeypatch.setattr(model, "hidden", hidden)
    monkeypatch.setattr("time.perf_counter", lambda: now)
    for last in (1, 5, 16, 59):
        tokens = torch.zeros(2, last + 1, dtype=torch.long)
        assert cache._without(model, tokens) == pytest.approx(sum(3 * n + 2 for n in range(1, last + 1)))


def test_greedy_tokens_are_told_from_others() -> None:
    model = new_model(ModelConfig(), vocabulary=cache._VOCABULARY, seed=1)
    tokens = greedy_of(model)(torch.arange(12)[:, None], 8)
    assert cache._is_greedy(model, tokens)
    tokens[5, 4] = (tokens[5, 4] + 1) % 12
    assert not cache._is_greedy(model, tokens)


def test_ratios_have_their_median_and_spread() -> None:
    pairs = [(1.0, 4.0), (2.0, 2.0), (1.0, 3.0)]
    slower = summary("a / b", "b", pairs, equal=True)
    faster = summary("b / a", "b", pairs, equal=True, speed_up=True)
    assert (slower["ratio"], slower["spread"]) == (1 / 3, [0.25, 1.0])
    assert (faster["ratio"], faster["spread"]) == (3.0, [1.0, 4.0])
    assert (faster["ours_seconds"], faster["peer_seconds"], faster["repeats"]) == (1.0, 3.0, 3)


@pytest.mark.parametrize("took, repeats", [(0.1, 15), (3.0, 10), (100.0, 3)])
def test_long_work_is_repeated_less_often_and_both_in_turn(took: float, repeats: int) -> None:
    calls: list[str] = []
    pairs = in_turn(lambda: calls.append("ours") or took, lambda: calls.append("theirs") or took, 15)
    assert pairs == [(took, took)] * repeats
    assert calls == ["ours", "theirs"] * (repeats + 1)
