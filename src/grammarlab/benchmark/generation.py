"""Greedy generation against the libraries that people use, each with the same weights and the same tokens out."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any

import torch

from grammarlab.benchmark.paired import in_turn, seconds, summary
from grammarlab.benchmark.peers import (
    GPT,
    LLAMA,
    Greedy,
    greedy_of,
    litgpt_greedy,
    new_model,
    transformers_greedy,
    x_transformers_greedy,
)
from grammarlab.config import BenchmarkConfig, FeedForwardName, ModelConfig
from grammarlab.model import Decoder

_VOCABULARY = 12  # the lesson's
# width, heads, depth, context, rows
SIZES = [(32, 4, 1, 9, 8), (32, 4, 1, 9, 512), (128, 4, 4, 256, 1), (128, 4, 4, 256, 64)]

GPT2: dict[str, Any] = {"width": 768, "heads": 12, "depth": 12, "context": 1024}


def generation_cases(config: BenchmarkConfig) -> Iterator[dict[str, Any]]:
    """Prompts of one token, to the end of the context. Ratios are theirs to ours: how many times faster ours is."""
    for size in SIZES:
        yield from _against_all(*size, config.repeats)
    yield _share_of_bandwidth(config.repeats)


def _against_all(width: int, heads: int, depth: int, context: int, rows: int, repeats: int) -> Iterator[dict[str, Any]]:
    sizes: dict[str, Any] = {"width": width, "heads": heads, "depth": depth, "context": context}
    gpt, llama = (new_model(ModelConfig(**sizes, **options), _VOCABULARY, seed=1) for options in (GPT, LLAMA))
    prompts = torch.arange(rows)[:, None] % _VOCABULARY
    new = context - 1
    name = f"width {width}, depth {depth}, {new} new tokens, batch {rows}"
    peers: list[tuple[str, Decoder, Greedy]] = [
        ("transformers", gpt, transformers_greedy(gpt)),
        ("x-transformers", gpt, x_transformers_greedy(gpt)),
        ("litgpt", llama, litgpt_greedy(llama, rows)),
        ("our own without a cache", gpt, greedy_of(gpt, cache=False)),
    ]
    for peer, model, theirs in peers:
        mine = greedy_of(model)
        equal = torch.equal(mine(prompts, new), theirs(prompts, new))
        pairs = in_turn(
            lambda mine=mine: seconds(lambda: mine(prompts, new)),  # type: ignore[misc]
            lambda theirs=theirs: seconds(lambda: theirs(prompts, new)),  # type: ignore[misc]
            repeats,
        )
        yield summary(f"{name}: {peer} / ours", peer, pairs, equal=equal, speed_up=True)


def _share_of_bandwidth(repeats: int) -> dict[str, Any]:
    """Seconds of reading GPT-2's weights once from memory to those of a token, whose step reads each of them once.

    The memory's speed is that of the faster of torch's sum and its scalar product, measured before each generation.
    """
    size = ModelConfig(feedforward=FeedForwardName.gelu_tanh, **GPT2, **GPT)
    model = new_model(size, 50_257, seed=1, std=0.02)
    read = sum(p.numel() for name, p in model.named_parameters() if name != "position_embedding.weight")
    prompts, new, mine = torch.tensor([[5]]), 32, greedy_of(model)
    equal = torch.equal(mine(prompts, 8), transformers_greedy(model)(prompts, 8))
    numbers, others = torch.ones(read), torch.ones(read)

    def memory() -> float:
        return min(seconds(numbers.sum), seconds(lambda: torch.dot(numbers, others)) / 2)

    pairs = in_turn(lambda: seconds(lambda: mine(prompts, new)) / new, memory, repeats)
    case = f"GPT-2 size, {new} new tokens, batch 1: reading the weights once / a token of ours"
    return summary(case, "memory", pairs, equal=equal, speed_up=True) | {
        "gigabytes_per_second": 4 * read / median(theirs for _, theirs in pairs) / 1e9
    }
