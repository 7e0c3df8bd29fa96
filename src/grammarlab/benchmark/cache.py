"""What the cache saves: seconds and floating-point operations of greedy generation without it, to those with it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import torch

from grammarlab.benchmark.paired import in_turn, seconds, summary
from grammarlab.benchmark.peers import greedy_of, new_model
from grammarlab.config import BenchmarkConfig, ModelConfig
from grammarlab.model import Decoder

CONTEXTS = (9, 17, 33, 65, 129, 257, 513, 1024)
BATCHES = (1, 8, 64, 512)
_VOCABULARY = 12  # the lesson's
_PASSES = 16  # lengths at which a pass is timed, where there are more of them


def cache_cases(config: BenchmarkConfig) -> Iterator[dict[str, Any]]:
    """The lesson's decoder from one token to the end of the context; ratios are speed-ups."""
    for context, batch in product(CONTEXTS, BATCHES):
        yield _case(context, batch, config.repeats)


def _case(context: int, batch: int, repeats: int) -> dict[str, Any]:
    model = new_model(ModelConfig(context=context), _VOCABULARY, seed=1)
    prompts, new = torch.arange(batch)[:, None] % _VOCABULARY, context - 1
    greedy = greedy_of(model)
    tokens = greedy(prompts, new)
    pairs = in_turn(lambda: seconds(lambda: greedy(prompts, new)), lambda: _without(model, tokens), repeats)
    return summary(
        f"context {context}, batch {batch}: without a cache / with it",
        "without a cache",
        pairs,
        equal=_is_greedy(model, tokens),
        speed_up=True,
    ) | {"context": context, "batch": batch, "operations_ratio": _ratio_of_operations(model.config)}


@torch.inference_mode()
def _without(model: Decoder, tokens: torch.Tensor) -> float:
    """Seconds of computing every token anew: a pass over the first 1, 2, … tokens, and each time the last one's logits.

    Where there are more than `_PASSES` of them, so many lengths are timed, and the seconds between are on straight
    lines.
    """
    last = tokens.shape[1] - 1
    lengths = np.unique(np.linspace(1, last, min(last, _PASSES)).round().astype(int))
    took = []
    for length in lengths.tolist():
        start = time.perf_counter()
        model.logits(model.hidden(tokens[:, :length])[:, -1]).argmax(-1)
        took.append(time.perf_counter() - start)
    return float(np.interp(np.arange(1, last + 1), lengths, took).sum())


@torch.inference_mode()
def _is_greedy(model: Decoder, tokens: torch.Tensor) -> bool:
    """Whether each token is the most probable one after those before it, by one pass without a cache."""
    rows = tokens.chunk(-(-tokens.numel() // 65_536))
    return all(torch.equal(model(part[:, :-1]).argmax(-1), part[:, 1:]) for part in rows)


def operations(config: ModelConfig, length: int, seen: int = 0) -> int:
    """Of products of matrices: `length` tokens after `seen`, a multiplication and an addition counting as two.

    The head is asked for one token.
    """
    width, keys = config.width, config.width // config.heads * (config.kv_heads or config.heads)
    block = width * (width + 2 * keys) + width * width + 2 * width * config.feedforward_width
    attention = 2 * width * (seen + length)
    return 2 * (config.depth * length * (block + attention) + width * _VOCABULARY)


def _ratio_of_operations(config: ModelConfig) -> float:
    lengths = range(1, config.context)
    without = sum(operations(config, length) for length in lengths)
    return without / sum(operations(config, 1, length - 1) for length in lengths)
