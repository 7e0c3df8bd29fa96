"""Prompts to sentences: one token after another, each drawn from the distribution that the model gives it.

Randomness is one uniform number for each (seed, row number, position), so a row's sentence depends on the seed and its
own number alone: not on its batch mates, the batch size or the cache. A token is drawn by inverting the cumulative
distribution, which never yields a token of probability 0.

Axes: B batch, V vocabulary, N context; a row holds at most N + 1 tokens, the last one never read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from grammarlab import compiled
from grammarlab.cache import KVCache
from grammarlab.model import Decoder
from grammarlab.streams import Stream, stream

_BLOCK = 256  # row numbers that share one random stream
_SHORT = 4  # tokens of a prompt up to which compiled steps are faster than a pass through the model

# Which ids may follow a prefix of ids: (V,) booleans.
Allowed = Callable[[Sequence[int]], NDArray[np.bool_]]

# ---- the distribution ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the next token is drawn. In this order, with what is left renormalised after each:

    temperature  q to the power 1/temperature; 0 is greedy: the first of the most probable
    top_k        the k most probable; of equal ones those with the lower id; more than there are means all
    top_p        the fewest of the most probable whose mass reaches p (Holtzman et al. 2020); 1 means all
    min_p        those at least min_p times as probable as the most probable one (Nguyen et al. 2024); 0 means all

    The last two to what the logits' rounding leaves: 1e-12 in float64, else 1e-6.

    Raises `ValueError` for values out of range.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise ValueError(f"temperature={self.temperature}: must be 0 (greedy) or positive and finite")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k={self.top_k}: must be at least 1")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p}: must be above 0 and at most 1")
        if self.min_p is not None and not 0 <= self.min_p <= 1:
            raise ValueError(f"min_p={self.min_p}: must be from 0 to 1")

    def log_probs(self, logits: Tensor) -> Tensor:
        """(…, V) logits to natural log-probabilities of what is drawn, in float64.

        Raises `ValueError` for logits that are not a number.
        """
        rounding = 1e-12 if logits.dtype == torch.float64 else 1e-6
        log_probs = next_token_log_probs(logits, self.temperature)
        if self.top_k is None and self.top_p in (None, 1) and self.min_p in (None, 0):
            return log_probs
        ranked, ids = log_probs.sort(dim=-1, descending=True, stable=True)
        if self.top_k is not None:
            ranked[..., self.top_k :] = -torch.inf
            ranked = ranked.log_softmax(-1)
        if self.top_p is not None and self.top_p < 1:
            mass = ranked.exp().cumsum(-1)
            # A token goes where those before it have reached p; so the first one never does.
            ranked[..., 1:].masked_fill_(mass[..., :-1] >= self.top_p - rounding, -torch.inf)
            ranked = ranked.log_softmax(-1)
        if self.min_p is not None and self.min_p > 0:
            least = ranked[..., :1] + math.log(self.min_p) - rounding
            ranked = ranked.masked_fill(ranked < least, -torch.inf).log_softmax(-1)
        return torch.empty_like(ranked).scatter_(-1, ids, ranked)


def next_token_log_probs(logits: Tensor, temperature: float) -> Tensor:
    """(…, V) logits to natural log-probabilities at a temperature, in float64. 0 is greedy: the first of the largest.

    Raises `ValueError` for logits that are not a number.
    """
    logits = logits.double()
    if torch.isnan(logits).any():
        raise ValueError(_DIVERGED)
    if temperature == 0:
        greedy = torch.full_like(logits, -torch.inf)
        return greedy.scatter_(-1, logits.argmax(-1, keepdim=True), 0.0)
    shifted = logits - logits.amax(-1, keepdim=True)  # first, so that a tiny temperature divides no large number
    return torch.log_softmax(shifted / temperature, dim=-1)


_DIVERGED = "the model's logits are not a number (NaN): its weights have diverged"


def draw(log_probs: Tensor, uniform: Tensor) -> Tensor:
    """(B, V) log-probabilities and (B,) numbers in [0, 1) to (B,) ids: the first whose cumulative mass exceeds it."""
    cumulative = log_probs.exp().cumsum(-1)
    total = cumulative[:, -1]
    target = torch.minimum(uniform * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, target[:, None], right=True)[:, 0]


def row_uniforms(seed: int, rows: Sequence[int], positions: int) -> Tensor:
    """(len(rows), positions) numbers in [0, 1), each fixed by seed, row number and position."""
    numbers = np.asarray(rows, dtype=np.int64)
    blocks, which = np.unique(numbers // _BLOCK, return_inverse=True)
    drawn = [stream(seed, Stream.generation, int(block)).random((positions, _BLOCK)).T for block in blocks]
    uniforms = np.empty((len(numbers), positions))
    for block, values in enumerate(drawn):
        mine = which == block
        uniforms[mine] = values[numbers[mine] % _BLOCK]
    return torch.from_numpy(uniforms)


# ---- sentences -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Generated:
    """Rows of ids on the CPU: the prompt, what was drawn, padding behind the end token.

    `log_probs`: natural log of q of each drawn token given those before it, at temperature 1 and with nothing left out.
    `legal_mass`: the mass that q at the temperature of the draw puts on the allowed tokens there; 1 without `allowed`.
    Where nothing was drawn they are 0 and 1.
    """

    tokens: Tensor  # (B, longest) int64
    log_probs: Tensor  # (B, longest) float64
    legal_mass: Tensor  # (B, longest) float64


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """How rows go on.

    `max_new_tokens`: 0 gives the prompts back as they are; None goes on to the end of the context, which leaves room
    for one token more than it holds. `allowed`: draw only among the tokens that it allows. `cache`: None uses one where
    the model allows it. `compile`: compiled steps through the cache, None where they are to be had (on the CPU, in
    float32 or float64). `chunk`: how many tokens of a prompt are read at once, None: all.

    Raises `ValueError` for values out of range.
    """

    sampling: Sampling = field(default_factory=Sampling)
    seed: int = 0
    max_new_tokens: int | None = None
    allowed: Allowed | None = None
    cache: bool | None = None
    compile: bool | None = None
    chunk: int | None = None

    def __post_init__(self) -> None:
        if self.max_new_tokens is not None and self.max_new_tokens < 0:
            raise ValueError(f"max_new_tokens={self.max_new_tokens}: must be at least 0")
        if self.chunk is not None and self.chunk < 1:
            raise ValueError(f"chunk={self.chunk}: must be at least 1")
        if self.compile and self.cache is False:
            raise ValueError("compile=True needs the cache, and cache=False")


def generate(
    model: Decoder,
    prompts: Sequence[Sequence[int]],
    *,
    end_id: int,
    how: How | None = None,
    rows: Sequence[int] | None = None,
    batch_size: int = 1024,
) -> Generated:
    """Go on from each prompt (ids, begin token first) until the end token or a limit of `how`.

    A row without an end token met the limit. `rows`: the numbers that with the seed fix each row's draws, by default
    0, 1, … The model's mode and torch's random state stay as they were.

    Raises `ValueError` for an empty prompt, one longer than the context, one with an end token, a cache for a model
    that is not causal, logits that are not a number, and where nothing is allowed.
    """
    how = how or How()
    numbers = range(len(prompts)) if rows is None else rows
    batches = []
    with evaluating(model):
        for start in range(0, len(prompts), batch_size):
            part = slice(start, start + batch_size)
            batch = _Batch(model, prompts[part], numbers[part], end_id, how)
            with torch.inference_mode():
                for _ in batch.steps():
                    pass
            batches.append(batch)
    longest = max((batch.end for batch in batches), default=0)

    def together(arrays: Sequence[NDArray[Any]], nothing: float) -> Tensor:
        whole = np.full((len(prompts), longest), nothing, dtype=arrays[0].dtype)
        for start, array in zip(range(0, len(prompts), batch_size), arrays, strict=True):
            whole[start : start + batch_size, : array.shape[1]] = array
        return torch.from_numpy(whole)

    if not batches:
        return Generated(*(torch.empty(0, 0, dtype=dtype) for dtype in (torch.long, torch.double, torch.double)))
    return Generated(
        tokens=together([batch.tokens[:, : batch.end] for batch in batches], model.pad_id),
        log_probs=together([batch.log_probs[:, : batch.end] for batch in batches], 0.0),
        legal_mass=together([batch.legal_mass[:, : batch.end] for batch in batches], 1.0),
    )


def stream_tokens(
    model: Decoder, prompt: Sequence[int], *, end_id: int, how: How | None = None, row: int = 0
) -> Iterator[int]:
    """The ids that `generate` would append to this row, each as soon as it is drawn. Raises as `generate`."""
    batch = _Batch(model, [prompt], [row], end_id, how or How())
    steps = batch.steps()
    with evaluating(model):
        while True:
            with torch.inference_mode():  # not while the caller has the token
                position = next(steps, None)
            if position is None:
                return
            yield int(batch.tokens[0, position])


class _Batch:
    """Rows that go on in step: at each position a row takes its prompt's token, a drawn one, or padding.

    So prompts of different lengths need no padding on the left, and every position is the same for all rows.
    """

    def __init__(
        self, model: Decoder, prompts: Sequence[Sequence[int]], rows: Sequence[int], end_id: int, how: How
    ) -> None:
        context = model.config.context
        given = np.fromiter(chain.from_iterable(prompts), np.int64)
        self._model, self._end_id, self._how = model, end_id, how
        self._lengths = np.fromiter(map(len, prompts), np.int64)
        if not self._lengths.all():
            raise ValueError("a prompt needs at least the begin token")
        if (longest := self._lengths.max()) > context:
            raise ValueError(f"a prompt of {longest} tokens is longer than the context of {context}")
        if (given == end_id).any():
            raise ValueError("a prompt that has an end token has nothing to go on from")
        self._limits = np.full(len(prompts), context + 1)
        if how.max_new_tokens is not None:
            self._limits = np.minimum(self._limits, self._lengths + how.max_new_tokens)
        positions = int(self._limits.max())
        self.tokens = np.full((len(prompts), positions), model.pad_id, dtype=np.int64)
        self.tokens[np.arange(positions) < self._lengths[:, None]] = given
        self.log_probs = np.zeros((len(prompts), positions))
        self.legal_mass = np.ones((len(prompts), positions))
        self.end = int(self._lengths.min())  # columns that are complete
        self._uniforms = row_uniforms(how.seed, rows, positions) if how.sampling.temperature > 0 else None
        self._likeliest = np.empty(len(prompts), np.int64), np.empty(len(prompts))

    def steps(self) -> Iterator[int]:
        """Fill one position after another; gives each when it is complete."""
        positions = self.tokens.shape[1]
        done = self._limits <= self._lengths
        if done.all():
            self.end = positions
            return
        read = self._reader(positions - 1)
        longest, first_limit = int(self._lengths.max()), int(self._limits.min())
        for position in range(self.end, positions):
            drawing = ~done
            if position < longest:
                drawing &= self._lengths <= position
            logits = read(self.tokens[:, :position])
            drawn, log_probs, legal_mass = self._choose(logits, position, drawing)
            np.copyto(self.tokens[:, position], drawn, where=drawing)
            np.copyto(self.log_probs[:, position], log_probs, where=drawing)
            if legal_mass is not None:
                np.copyto(self.legal_mass[:, position], legal_mass, where=drawing)
            self.end = position + 1
            yield position
            done |= self.tokens[:, position] == self._end_id
            if self.end >= first_limit:
                done |= self._limits <= self.end
            if done.all():
                return

    def _reader(self, capacity: int) -> Callable[[NDArray[np.int64]], Tensor]:
        """A function from all (B, end) tokens so far to (B, V) logits; with a cache it reads the new ones alone."""
        model, how, batch = self._model, self._how, len(self.tokens)
        device = model.token_embedding.weight.device

        def on_device(tokens: NDArray[np.int64]) -> Tensor:
            return torch.from_numpy(tokens).to(device)

        use_cache = model.config.causal if how.cache is None else how.cache
        if not use_cache:
            return lambda tokens: model.logits(model.hidden(on_device(tokens))[:, -1])

        compile = compiled.supports(model) if how.compile is None else how.compile
        chunk = how.chunk or self.end

        def read(tokens: NDArray[np.int64], cache: KVCache) -> Tensor:
            for start in range(cache.length, tokens.shape[1], chunk):
                hidden = model.hidden(on_device(tokens[:, start : start + chunk]), cache)
            return model.logits(hidden[:, -1])

        if not compile:
            return partial(read, cache=model.new_cache(batch, capacity))
        step = compiled.Step(model, batch, capacity)

        def read_compiled(tokens: NDArray[np.int64]) -> Tensor:
            if step.length == 0 and tokens.shape[1] > _SHORT:
                cache = model.new_cache(batch, tokens.shape[1])
                logits = read(tokens, cache)
                step.load(cache)
                return logits
            for position in range(step.length, tokens.shape[1]):
                logits = step(np.ascontiguousarray(tokens[:, position]))
            return logits

        return read_compiled

    def _choose(
        self, logits: Tensor, position: int, drawing: NDArray[np.bool_]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64] | None]:
        """Each row's (B,) id, its log q at temperature 1, and the mass of what is allowed there, from (B, V) logits."""
        sampling, allowed, legal_mass = self._how.sampling, self._how.allowed, None
        if self._uniforms is None and allowed is None and logits.device.type == "cpu":
            ids, greatest = self._likeliest
            compiled.likeliest(logits.numpy(), ids, greatest)
            if np.isnan(greatest).any():
                raise ValueError(_DIVERGED)
            return ids, greatest, None
        choosable = logits
        if allowed is not None:
            legal = self._legal(allowed, logits, position, drawing)
            choosable = logits.masked_fill(~legal, -torch.inf)
            probs = next_token_log_probs(logits, sampling.temperature).exp()
            legal_mass = probs.masked_fill(~legal, 0.0).sum(-1).cpu().numpy()
        if self._uniforms is None:
            drawn = choosable.argmax(-1)
        else:
            drawn = draw(sampling.log_probs(choosable), self._uniforms[:, position].to(logits.device))
        log_q = logits.double().log_softmax(-1).gather(1, drawn[:, None])[:, 0]
        if log_q.isnan().any():
            raise ValueError(_DIVERGED)
        return drawn.cpu().numpy(), log_q.cpu().numpy(), legal_mass

    def _legal(self, allowed: Allowed, logits: Tensor, position: int, drawing: NDArray[np.bool_]) -> Tensor:
        """(B, V), True everywhere in rows that are not drawing."""
        legal = torch.ones(logits.shape, dtype=torch.bool)
        for row in np.flatnonzero(drawing):
            prefix = self.tokens[row, :position].tolist()
            legal[row] = torch.from_numpy(allowed(prefix))
            if not legal[row].any():
                raise ValueError(f"no token is allowed after {prefix}")
        return legal.to(logits.device)


@contextmanager
def evaluating(model: Decoder) -> Iterator[None]:
    """Without dropout; the mode is then as before."""
    if not any(module.training for module in model.modules()):
        yield
        return
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)
