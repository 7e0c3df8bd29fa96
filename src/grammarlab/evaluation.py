"""The model against the language: every measure, exact where the language can be written out.

p is the language, q the model as it generates: each next-word distribution computed from the prefix alone. For a causal
model one pass over a sentence gives them all; one that is not causal is run on each prefix by itself, since a full
pass shows it the answer. All sums in float64, all values in nats.

Axes: B batch, T predicted tokens (words and end), V vocabulary; rows are `begin word … word end`, (B, T + 1), padded.
"""

from __future__ import annotations

import math
import os
from collections.abc import Container, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchmetrics import Metric

from grammarlab.generation import Allowed, How, evaluating, generate, next_token_log_probs
from grammarlab.intervals import Z95, mean_and_half, wilson_interval
from grammarlab.language import Language, NotEnumerableError, Sentence
from grammarlab.measures import measure_name
from grammarlab.model import Decoder
from grammarlab.streams import Stream, stream
from grammarlab.vocabulary import Vocabulary

# ---- the loss on a set of sentences, and the language's own --------------------------------------------------------


def inputs_and_targets(rows: Tensor, model: Decoder) -> tuple[Tensor, Tensor]:
    """(B, T + 1) rows to (B, T) inputs and targets. The end token is predicted and never seen.

    So a sentence is the same to the model whatever longer ones are in its batch: one that is not causal would see the
    end token of the shorter ones, and gets padding there. To a causal one it is behind all that counts.
    """
    inputs, targets = rows[:, :-1], rows[:, 1:]
    if model.config.causal:
        return inputs, targets
    return inputs.masked_fill(targets == model.pad_id, model.pad_id), targets


def sentence_losses(logits: Tensor, targets: Tensor, pad_id: int) -> tuple[Tensor, Tensor]:
    """(B, T, V) logits and (B, T) targets to each sentence's (B,) −log q and number of predicted tokens."""
    log_probs = torch.log_softmax(logits.double(), dim=-1)
    chosen = log_probs.gather(-1, targets[..., None])[..., 0]
    predicted = targets != pad_id
    return -chosen.masked_fill(~predicted, 0.0).sum(1), predicted.sum(1)


class ExcessLoss(Metric):
    """Sums for the loss of a set of sentences and for the floor: the same sum under the language.

    `compute` gives nats per predicted token over the whole set, whatever the batches:
    loss, floor, excess_loss = loss − floor, and leakage, 1 where the excess is clearly below 0. In expectation it
    cannot be (Gibbs' inequality), so the model has seen what it should predict. Clearly: below −0.01 and by more than
    three standard errors of the sentences' differences; a single sentence has none.
    """

    higher_is_better = False
    full_state_update = False
    sums: Tensor

    def __init__(self) -> None:
        super().__init__()
        # loss, floor, squared difference, predicted tokens, sentences
        self.add_state("sums", torch.zeros(5, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, losses: Tensor, floors: Tensor, tokens: Tensor) -> None:
        """(B,) −log q, (B,) −log p, (B,) predicted tokens of each sentence."""
        count = torch.tensor(len(losses), device=losses.device)
        new = torch.stack([losses.sum(), floors.sum(), ((losses - floors) ** 2).sum(), tokens.sum(), count]).double()
        self.sums = self.sums + new  # not in place: Lightning may have made the state in inference mode

    def compute(self) -> dict[str, Tensor]:
        loss, floor, squares, tokens, n = self.sums
        mean = (loss - floor) / n
        spread = ((squares / n - mean**2).clamp(min=0) / (n - 1).clamp(min=1)).sqrt()  # standard error a sentence
        excess = (loss - floor) / tokens
        leakage = (n > 1) & (excess < -0.01) & (mean < -3 * spread)
        return {
            "loss": loss / tokens,
            "floor": floor / tokens,
            "excess_loss": excess,
            "leakage": leakage.double(),
        }


# ---- the truth -----------------------------------------------------------------------------------------------------


@torch.inference_mode()
def prefix_logits(model: Decoder, rows: Tensor) -> Tensor:
    """(B, T + 1) rows to (B, T, V) logits, each computed from the prefix alone, in the model's own mode."""
    inputs = rows[:, :-1]
    if model.config.causal:
        return model(inputs)
    steps = []
    for length in range(1, inputs.shape[1] + 1):
        prefixes, position = torch.unique(inputs[:, :length], dim=0, return_inverse=True)
        steps.append(model(prefixes)[:, -1][position])
    return torch.stack(steps, dim=1)


class Truth:
    """A language prepared for comparison: its sentences as rows of ids, with all that does not depend on the model.

    Written out (`exact`) where it has at most `limit` derivations, with weights p(s); else `samples` sentences drawn
    from it with equal weights.
    """

    def __init__(self, language: Language, vocabulary: Vocabulary, *, limit: int, samples: int, seed: int) -> None:
        self.language, self.vocabulary = language, vocabulary
        try:
            listed = language.enumerate(limit)
            self.exact = True
            self.sentences: list[Sentence] = [sentence for sentence, _ in listed]
            self.weights = torch.tensor([probability for _, probability in listed], dtype=torch.float64)
            self.log_probs = self.weights.log()
        except NotEnumerableError:
            self.exact = False
            self.sentences = language.sample(samples, stream(seed, Stream.truth))
            self.weights = torch.full((samples,), 1 / samples, dtype=torch.float64)
            self.log_probs = torch.from_numpy(language.log_prob(self.sentences))
        self.rows = torch.from_numpy(vocabulary.encode(self.sentences))
        self.predicted = self.rows[:, 1:] != vocabulary.pad_id  # (N, T)
        self.reached = self.weights @ self.predicted.double()  # (T,) probability that a sentence gets to the position

    @cached_property
    def next_probs(self) -> Tensor:
        """(N, T, V) p of each token after the words before. Made when first asked for: generating needs none of it."""
        language, columns = self.language, torch.from_numpy(self.vocabulary.column_ids)
        found = torch.zeros(*self.predicted.shape, len(self.vocabulary), dtype=torch.float64)
        if not self.exact:
            language.next_token_probs(self.sentences[0])  # what all need is made once, before there are threads
        with ThreadPoolExecutor(1 if self.exact else len(os.sched_getaffinity(0))) as pool:
            for index, probs in enumerate(pool.map(language.next_token_probs, self.sentences)):
                found[index][: len(probs), columns] = torch.from_numpy(probs)
        return found

    @cached_property
    def entropy_by_position(self) -> Tensor:
        """(T,) mean entropy of the next token over the sentences that get to the position, in nats."""
        return (self.weights @ torch.special.entr(self.next_probs).sum(-1)) / self.reached


@dataclass(slots=True)
class Comparison:
    """A model held against a `Truth`: the measures by name, and the loss at each position."""

    measures: dict[str, float]
    sentence_log_probs: Tensor  # (N,) log q of each of the truth's sentences
    loss_by_position: Tensor  # (T,) nats
    kl_by_position: Tensor  # (T,) nats: KL of the next-word distributions there, mean over the prefixes of p


@torch.inference_mode()
def compare_with_truth(
    model: Decoder,
    truth: Truth,
    *,
    temperatures: Sequence[float],
    draws: int,
    batch_size: int = 1024,
    holdout: Container[Sentence] = (),
) -> Comparison:
    """The `truth/…` measures of q against p from one pass over the language's sentences.

    `draws` is the n of the coverage. With a `holdout`, also the mass that q and p (its share) put on those sentences.

    For a `Truth` that is not exact each measure is a mean over the drawn sentences and carries its standard error, and
    those that sum over the whole language (validity and coverage) are left out. Raises `ValueError` for NaN logits.
    """
    device = model.token_embedding.weight.device
    all_temperatures = sorted({1.0, *temperatures}) if truth.exact else [1.0]
    sentence_log_q = {
        temperature: torch.empty(len(truth.rows), dtype=torch.float64) for temperature in all_temperatures
    }
    token_losses = torch.empty(truth.predicted.shape, dtype=torch.float64)
    legal_mass = torch.empty(truth.predicted.shape, dtype=torch.float64)
    divergences = torch.empty(truth.predicted.shape, dtype=torch.float64)
    with evaluating(model):
        for start in range(0, len(truth.rows), batch_size):
            part = slice(start, start + batch_size)
            rows, predicted = truth.rows[part], truth.predicted[part]
            logits = prefix_logits(model, rows.to(device)).cpu()
            for temperature in all_temperatures:
                log_probs = next_token_log_probs(logits, temperature)  # (B, T, V)
                chosen = log_probs.gather(-1, rows[:, 1:, None])[..., 0].masked_fill(~predicted, 0.0)
                sentence_log_q[temperature][part] = chosen.sum(1)
                if temperature == 1:
                    token_losses[part] = -chosen
                    p = truth.next_probs[part]
                    legal_mass[part] = log_probs.exp().masked_fill(p == 0, 0.0).sum(-1)
                    cross = -(p * log_probs.masked_fill(p == 0, 0.0)).sum(-1)  # where p is 0, so is 0 · log q
                    divergences[part] = cross - torch.special.entr(p).sum(-1)

    by_position = (truth.weights @ token_losses) / truth.reached
    if truth.exact:
        measures = _exact_measures(truth, sentence_log_q, legal_mass, draws)
        if holdout:
            held_out = torch.tensor([sentence in holdout for sentence in truth.sentences])
            measures["truth/holdout_mass"] = float(sentence_log_q[1.0][held_out].exp().sum())
            measures["truth/holdout_share"] = float(truth.weights[held_out].sum())
    else:
        measures = _estimated_measures(truth, sentence_log_q[1.0], legal_mass, divergences)
    kl_by_position = (truth.weights @ divergences) / truth.reached
    return Comparison(measures, sentence_log_q[1.0], by_position, kl_by_position)


def _exact_measures(
    truth: Truth, sentence_log_q: dict[float, Tensor], legal_mass: Tensor, draws: int
) -> dict[str, float]:
    p, log_q = truth.weights, sentence_log_q[1.0]
    q = log_q.exp()
    validity = math.fsum(q.tolist())
    measures = {
        "truth/kl": math.fsum((p * (truth.log_probs - log_q)).tolist()),
        "truth/total_variation": 0.5 * math.fsum((p - q).abs().tolist()) + 0.5 * (1 - validity),
        "truth/legal_mass": float((p @ legal_mass).sum() / truth.reached.sum()),
    }
    for temperature, log_q_at in sentence_log_q.items():
        q_at = log_q_at.exp()
        measures[measure_name("truth", temperature, "validity")] = math.fsum(q_at.tolist())
        # 1 − (1 − q)ⁿ without cancellation; a q of 1, up to rounding, is seen for certain.
        seen = -torch.expm1(draws * torch.log1p(-q_at.clamp(max=1.0)))
        measures[measure_name("truth", temperature, "coverage")] = float(seen.mean())
    return measures


def _estimated_measures(truth: Truth, log_q: Tensor, legal_mass: Tensor, divergences: Tensor) -> dict[str, float]:
    """Means over sentences drawn from p, each with its standard error."""
    ratio = (log_q - truth.log_probs).exp()
    lengths = truth.predicted.sum(1).double()
    mass = legal_mass.sum(1)
    mean_mass = mass.sum() / lengths.sum()
    per_sentence = {
        # By the chain rule the sum of those of the next word: it varies less than log p - log q, and is never negative.
        "truth/kl": divergences.sum(1),
        # Σ max(p − q, 0) = E_p max(1 − q/p, 0): equal to the total variation, and bounded by 1.
        "truth/total_variation": (1 - ratio).clamp(min=0),
        # A ratio of two means; its error to first order (the delta method) is that of the residuals.
        "truth/legal_mass": mean_mass + (mass - mean_mass * lengths) / lengths.mean(),
    }
    measures: dict[str, float] = {}
    for name, values in per_sentence.items():
        measures[name] = float(values.mean())
        measures[f"{name}_stderr"] = float(values.std(correction=1) / math.sqrt(len(values)))
    return measures


# ---- generated sentences -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sample:
    """One generated sentence. `log_prob_model` is at temperature 1 and covers the end token where there is one."""

    temperature: float
    words: Sentence
    ended: bool
    valid: bool
    log_prob_language: float
    log_prob_model: float
    # Of what was drawn, the end token with it: log q at temperature 1, and the mass on what was allowed (or 1).
    drawn_log_probs: tuple[float, ...]
    drawn_legal_mass: tuple[float, ...]

    @property
    def text(self) -> str:
        return " ".join(self.words)


def draw_samples(
    model: Decoder,
    language: Language,
    vocabulary: Vocabulary,
    prompts: Sequence[Sequence[str]],
    *,
    how: How,
    batch_size: int = 1024,
) -> list[Sample]:
    """A generated sentence for each prompt (words), scored under the language and the model.

    Raises `ValueError` for an unknown word, and as `generate`.
    """
    encoded = [[vocabulary.begin_id, *vocabulary.word_ids(prompt)] for prompt in prompts]
    generated = generate(model, encoded, end_id=vocabulary.end_id, how=how, batch_size=batch_size)
    rows = generated.tokens
    sentences = [vocabulary.decode(row) for row in rows.tolist()]
    ended = (rows == vocabulary.end_id).any(1).tolist()
    scores = language.log_prob(sentences)
    log_q = sequence_log_probs(model, rows, batch_size=batch_size).tolist()
    return [
        Sample(
            temperature=how.sampling.temperature,
            words=words,
            ended=has_end,
            valid=bool(has_end and score > -math.inf),
            log_prob_language=float(score) if has_end else -math.inf,
            log_prob_model=model_score,
            drawn_log_probs=tuple(log_probs[len(prompt) : 1 + len(words) + has_end]),
            drawn_legal_mass=tuple(mass[len(prompt) : 1 + len(words) + has_end]),
        )
        for prompt, words, has_end, score, model_score, log_probs, mass in zip(
            encoded,
            sentences,
            ended,
            scores,
            log_q,
            generated.log_probs.tolist(),
            generated.legal_mass.tolist(),
            strict=True,
        )
    ]


def legal_ids(language: Language, vocabulary: Vocabulary) -> Allowed:
    """Which ids can follow a prefix of ids (begin token first) in a sentence of the language.

    A prefix met again is remembered; after one that begins no sentence there are none.
    """
    columns = vocabulary.column_ids

    @lru_cache(100_000)
    def after(words: Sentence) -> NDArray[np.bool_]:
        legal = np.zeros(len(vocabulary), dtype=bool)
        legal[columns] = language.next_token_probs(words)[-1] > 0
        return legal

    return lambda prefix: after(vocabulary.decode(prefix))


@torch.inference_mode()
def sequence_log_probs(model: Decoder, rows: Tensor, *, batch_size: int = 1024) -> Tensor:
    """(B, T + 1) rows to (B,) natural log of q of all their tokens after the first, on the CPU."""
    device = model.token_embedding.weight.device
    with evaluating(model):
        parts = []
        for start in range(0, len(rows), batch_size):
            part = rows[start : start + batch_size]
            distinct, position = torch.unique(part, dim=0, return_inverse=True)  # small languages repeat themselves
            logits = prefix_logits(model, distinct.to(device)).cpu()
            parts.append(-sentence_losses(logits, distinct[:, 1:], model.pad_id)[0][position])
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.float64)


def measure_samples(samples: Sequence[Sample], *, language_size: int | None, draws: int) -> dict[str, float]:
    """The `sampled/…` measures of sentences generated at one temperature, with 95 % intervals.

    validity: the share of valid ones, Wilson's interval. coverage and distinct: in consecutive groups of `draws`
    sentences, the share of the language that was seen and the share of sentences that differ; their mean over the
    groups with Student's interval. At least two full groups are needed.
    """
    temperature = samples[0].temperature
    valid = sum(sample.valid for sample in samples)
    groups = [samples[i : i + draws] for i in range(0, len(samples) - draws + 1, draws)]
    values = {
        "validity": (valid / len(samples), *wilson_interval(valid, len(samples))),
        "distinct": _mean_interval([len({(s.words, s.ended) for s in group}) / draws for group in groups], temperature),
    }
    if language_size is not None:
        shares = [len({s.words for s in group if s.valid}) / language_size for group in groups]
        values["coverage"] = _mean_interval(shares, temperature)
    return {
        measure_name("sampled", temperature, name + bound): value
        for name, triple in values.items()
        for bound, value in zip(("", "_low", "_high"), triple, strict=True)
    }


def estimate_validity(samples: Sequence[Sample]) -> dict[str, float]:
    """`truth/…/validity` of one temperature where only samples of q can tell it, with its standard error.

    The error is that of Wilson's interval, which is not 0 where all samples are valid or none.
    """
    valid, n = sum(sample.valid for sample in samples), len(samples)
    low, high = wilson_interval(valid, n)
    name = measure_name("truth", samples[0].temperature, "validity")
    return {name: valid / n, f"{name}_stderr": (high - low) / (2 * Z95)}


def _mean_interval(values: Sequence[float], temperature: float) -> tuple[float, float, float]:
    """Mean of shares and its 95 % interval: Student's, and Wilson's where all values happen to be equal.

    Wilson's is then a safe one, since no share between 0 and 1 varies more than a yes or no of the same mean. Greedy
    generation has no chance in it: its values are equal for certain.
    """
    if min(values) == max(values):  # their deviation may still be a rounding error above 0
        mean = values[0]
        return (mean, *wilson_interval(mean * len(values), len(values))) if temperature > 0 else (mean, mean, mean)
    mean, half = mean_and_half(values)
    assert half is not None  # at least two groups
    return mean, max(0.0, mean - half), min(1.0, mean + half)
