"""What a run found at its end, as the tables that `grammarlab.tables` describes: written, logged and drawn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set

import numpy as np
import polars as pl
import torch

from grammarlab.config import EvaluationConfig, GenerationConfig
from grammarlab.evaluation import Comparison, Sample, Truth, compare_with_truth, prefix_logits
from grammarlab.generation import evaluating, next_token_log_probs
from grammarlab.language import Language, Sentence
from grammarlab.measures import measure_name
from grammarlab.model import Decoder
from grammarlab.tables import SCHEMAS, SHOWN_BEGIN, SHOWN_END, table
from grammarlab.vocabulary import Vocabulary

SHOWN_TOKENS = 32  # of the sentence whose attention is recorded: its table grows with their square
# The curves over temperature, evenly in the logarithm.
TEMPERATURES = tuple(round(float(t), 3) for t in np.geomspace(0.1, 4.0, 17))


def collect(
    model: Decoder,
    truth: Truth,
    comparison: Comparison,
    samples: Sequence[Sample],
    *,
    evaluation: EvaluationConfig,
    generation: GenerationConfig,
) -> dict[str, pl.DataFrame]:
    """Every table that there is for this language. `comparison` and `samples` are those of the last evaluation."""
    words = truth.sentences[0] if evaluation.sentence is None else tuple(evaluation.sentence.split())
    found = {
        "samples": sample_table(samples, truth.language),
        "positions": pl.DataFrame(
            {
                "position": range(1, len(truth.reached) + 1),
                "reached": truth.reached.tolist(),
                "entropy": truth.entropy_by_position.tolist(),
                "loss": comparison.loss_by_position.tolist(),
                "kl": comparison.kl_by_position.tolist(),
            }
        ),
        "sentences": pl.DataFrame(
            {
                "text": [" ".join(sentence) for sentence in truth.sentences],
                "log_prob_language": truth.log_probs.tolist(),
                "log_prob_model": comparison.sentence_log_probs.tolist(),
                "exact": ["yes" if truth.exact else "no"] * len(truth.sentences),
            }
        ),
        "attention": attention_table(model, truth.vocabulary, words),
        "next_words": next_words_table(model, truth.language, truth.vocabulary, words),
    }
    if truth.exact:
        found["temperatures"] = temperature_table(
            model, truth, {*TEMPERATURES, 1.0, *generation.temperatures}, generation.draws, evaluation.batch_size
        )
    return found


def sample_table(samples: Sequence[Sample], language: Language) -> pl.DataFrame:
    faults: dict[tuple[Sentence, bool], int | None] = {}
    for sample in samples:
        key = (sample.words, sample.ended)
        if key not in faults:
            faults[key] = None if sample.valid else first_fault(language, sample.words)
    return pl.DataFrame(
        {
            "temperature": [sample.temperature for sample in samples],
            "text": [sample.text for sample in samples],
            "valid": ["yes" if sample.valid else "no" for sample in samples],
            "log_prob_language": [sample.log_prob_language for sample in samples],
            "log_prob_model": [sample.log_prob_model for sample in samples],
            "wrong_at": [faults[sample.words, sample.ended] for sample in samples],
        },
        schema=SCHEMAS["samples"],
    )


def first_fault(language: Language, words: Sentence) -> int:
    """The place of the first word with which no sentence goes on; their number where all could be gone on from."""
    column = {word: index for index, word in enumerate(language.terminals)}
    follows = language.next_token_probs(words)
    return next((i for i, word in enumerate(words) if follows[i][column[word]] == 0), len(words))


def temperature_table(
    model: Decoder, truth: Truth, temperatures: Set[float], draws: int, batch_size: int
) -> pl.DataFrame:
    rows = sorted(temperatures)
    measured = compare_with_truth(model, truth, temperatures=rows, draws=draws, batch_size=batch_size).measures
    return pl.DataFrame(
        {
            "temperature": rows,
            **{name: [measured[measure_name("truth", t, name)] for t in rows] for name in ("validity", "coverage")},
        }
    )


def _row(model: Decoder, vocabulary: Vocabulary, words: Sentence) -> torch.Tensor:
    """(1, T) ids of begin and words."""
    return torch.tensor(
        [[vocabulary.begin_id, *vocabulary.word_ids(words)]], device=model.token_embedding.weight.device
    )


@torch.inference_mode()
def attention_table(model: Decoder, vocabulary: Vocabulary, words: Sentence) -> pl.DataFrame:
    shown = words[: min(SHOWN_TOKENS, model.config.context) - 1]
    labels = np.array([SHOWN_BEGIN, *shown])
    with evaluating(model):
        weights, visible = (part[:, 0].cpu() for part in model.attention_maps(_row(model, vocabulary, shown)))
    layer, head, query, key = (index.ravel() for index in np.indices(weights.shape))
    return pl.DataFrame(
        {
            "layer": layer + 1,
            "head": head + 1,
            "query": query,
            "key": key,
            "query_word": labels[query],
            "key_word": labels[key],
            "weight": weights.double().numpy().ravel(),
            "visible": visible.numpy().ravel(),
        }
    )


@torch.inference_mode()
def next_words_table(model: Decoder, language: Language, vocabulary: Vocabulary, words: Sentence) -> pl.DataFrame:
    shown = words[: min(SHOWN_TOKENS, model.config.context) - 1]
    p = language.next_token_probs(shown)
    rows = torch.nn.functional.pad(_row(model, vocabulary, shown), (0, 1), value=vocabulary.end_id)
    with evaluating(model):
        q = next_token_log_probs(prefix_logits(model, rows).cpu(), 1.0)[0].exp()[:, vocabulary.column_ids].numpy()
    tokens = (*language.terminals, SHOWN_END)

    def cells() -> Iterator[tuple[int, str, str, float, float]]:
        for position in range(len(shown) + 1):
            prefix = " ".join(shown[:position])
            for column in np.flatnonzero((p[position] > 0) | (q[position] >= 1e-6)):
                yield position + 1, prefix, tokens[column], float(p[position][column]), float(q[position][column])

    return table("next_words", cells())
