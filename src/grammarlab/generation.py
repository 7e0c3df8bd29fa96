"""Prompts to sentences: one token after another, each drawn from the distribution that the model gives it.

Randomness is one uniform number for each (seed, row, position), so a row's sentence depends on the seed and its own
number alone: not on its batch mates, the batch size or the cache. A token is drawn by inverting the cumulative
distribution, which never yields a token of probability 0.

Axes: B batch, T new tokens, V vocabulary, N context; a row holds at most N + 1 tokens, the last one never read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from grammarlab.model import Decoder
from grammarlab.streams import Stream, stream

_BLOCK = 256  # rows that share one random stream


def next_token_log_probs(logits: Tensor, temperature: float) -> Tensor:
    """(…, V) logits to natural log-probabilities at a temperature, in float64. 0 is greedy: the first of the largest.

    Raises `ValueError` for logits that are not a number.
    """
    logits = logits.double()
    if torch.isnan(logits).any():
        raise ValueError("the model's logits are not a number (NaN): its weights have diverged")
    if temperature == 0:
        greedy = torch.full_like(logits, -torch.inf)
        return greedy.scatter_(-1, logits.argmax(-1, keepdim=True), 0.0)
    shifted = logits - logits.amax(-1, keepdim=True)  # first, so that a tiny temperature divides no large number
    return torch.log_softmax(shifted / temperature, dim=-1)


def draw(log_probs: Tensor, uniform: Tensor) -> Tensor:
    """(B, V) log-probabilities and (B,) numbers in [0, 1) to (B,) ids: the first whose cumulative mass exceeds it."""
    cumulative = log_probs.exp().cumsum(-1)
    total = cumulative[:, -1]
    target = torch.minimum(uniform * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, target[:, None], right=True)[:, 0]


def row_uniforms(seed: int, rows: range, positions: int) -> Tensor:
    """(len(rows), positions) numbers in [0, 1), each fixed by seed, row and position."""
    first, last = rows.start // _BLOCK, (max(rows.stop, 1) - 1) // _BLOCK
    blocks = [stream(seed, Stream.generation, block).random((positions, _BLOCK)).T for block in range(first, last + 1)]
    offset = first * _BLOCK
    return torch.from_numpy(np.concatenate(blocks)[rows.start - offset : rows.stop - offset].copy())


@contextmanager
def evaluating(model: Decoder) -> Iterator[None]:
    """Without dropout; the mode is then as before."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


@torch.inference_mode()
def generate(
    model: Decoder,
    prompts: Sequence[Sequence[int]],
    *,
    end_id: int,
    temperature: float = 1.0,
    seed: int = 0,
    max_new_tokens: int | None = None,
    cache: bool | None = None,
    batch_size: int = 1024,
) -> Tensor:
    """Go on from each prompt (ids, begin token first) until the end token or the limit.

    Returns (rows, longest) ids on the CPU: the prompt, what was drawn, padding after the end token. A row without one
    met `max_new_tokens` or the context. `cache`: None uses one where the model allows it. The model's mode and
    torch's random state stay as they were.

    Raises `ValueError` for an empty prompt, one longer than the context, a cache for a model that is not causal, and
    logits that are not a number.
    """
    context = model.config.context
    for prompt in prompts:
        if not prompt:
            raise ValueError("a prompt needs at least the begin token")
        if len(prompt) > context:
            raise ValueError(f"a prompt of {len(prompt)} tokens is longer than the context of {context}")
    use_cache = model.config.causal if cache is None else cache
    with evaluating(model):
        batches = [
            _generate_batch(
                model,
                prompts[start : start + batch_size],
                first_row=start,
                end_id=end_id,
                temperature=temperature,
                seed=seed,
                max_new_tokens=max_new_tokens,
                use_cache=use_cache,
            )
            for start in range(0, len(prompts), batch_size)
        ]
    longest = max((batch.shape[1] for batch in batches), default=0)
    padded = [torch.nn.functional.pad(b, (0, longest - b.shape[1]), value=model.pad_id) for b in batches]
    return torch.cat(padded) if padded else torch.empty(0, 0, dtype=torch.long)


def _generate_batch(
    model: Decoder,
    prompts: Sequence[Sequence[int]],
    *,
    first_row: int,
    end_id: int,
    temperature: float,
    seed: int,
    max_new_tokens: int | None,
    use_cache: bool,
) -> Tensor:
    """Rows go on in step: at each position a row takes its prompt's token, a drawn one, or padding.

    So prompts of different lengths need no padding on the left, and every position is the same for all rows.
    """
    device = model.token_embedding.weight.device
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
    limits = torch.full_like(lengths, model.config.context + 1)
    if max_new_tokens is not None:
        limits = torch.minimum(limits, lengths + max_new_tokens)
    positions = int(limits.max())
    tokens = torch.full((len(prompts), positions), model.pad_id, dtype=torch.long, device=device)
    for row, prompt in zip(tokens, prompts, strict=True):
        row[: len(prompt)] = torch.tensor(prompt, device=device)
    uniforms = row_uniforms(seed, range(first_row, first_row + len(prompts)), positions).to(device)

    start = int(lengths.min())
    cache = model.new_cache(len(prompts), positions - 1) if use_cache else None
    logits = model(tokens[:, :start], cache)[:, -1]  # (B, V)
    end = start
    done = torch.zeros(len(prompts), dtype=torch.bool, device=device)
    for position in range(start, positions):
        drawn = draw(next_token_log_probs(logits, temperature), uniforms[:, position])
        done |= position >= limits
        drawn = drawn.masked_fill(done, model.pad_id)
        tokens[:, position] = torch.where(position < lengths, tokens[:, position], drawn)
        done |= tokens[:, position] == end_id
        end = position + 1
        if end == positions or done.all():
            break
        new = tokens[:, position:end] if use_cache else tokens[:, :end]
        logits = model(new, cache)[:, -1]
    return tokens[:, :end].cpu()
