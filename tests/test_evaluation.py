"""The measures, against sums over every sequence, numbers worked out by hand, and published intervals."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from grammarlab.config import ModelConfig
from grammarlab.evaluation import (
    Comparison,
    ExcessLoss,
    Sample,
    Truth,
    compare_with_truth,
    draw_samples,
    estimate_validity,
    measure_samples,
    prefix_logits,
    sentence_losses,
    sequence_log_probs,
)
from grammarlab.generation import How, Sampling, generate
from grammarlab.intervals import wilson_interval
from grammarlab.language import Language, Sentence, SentenceTable, load
from grammarlab.measures import measure_name, measure_names
from grammarlab.model import Decoder
from grammarlab.vocabulary import Vocabulary

WORDS = ("a", "b", "c")
CONTEXT = 5  # begin and four words
# Unequal probabilities and lengths, the empty sentence, one sentence the beginning of others.
P: dict[Sentence, float] = {
    ("a",): 0.3,
    ("a", "b"): 0.25,
    ("b", "c", "a"): 0.2,
    ("c", "c"): 0.15,
    (): 0.1,
}
# Another language over the same words: 0.32 of it lies outside of P.
Q: dict[Sentence, float] = {
    ("a",): 0.08,
    ("a", "b"): 0.2,
    ("b", "c", "a"): 0.1,
    ("c", "c"): 0.05,
    (): 0.25,
    ("a", "c"): 0.21,
    ("b",): 0.01,
    ("b", "c", "b", "a"): 0.06,
    ("c", "a"): 0.04,
}
LANGUAGE = SentenceTable(WORDS, P)
VOCABULARY = Vocabulary(WORDS)
TRUTH = Truth(LANGUAGE, VOCABULARY, limit=100, samples=2, seed=0)
TEMPERATURES = [0.0, 0.5, 0.8, 1.0, 2.0]


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def decoder(seed: int = 0, **options: Any) -> Decoder:
    """A random decoder, far from uniform."""
    sizes: dict[str, Any] = {"width": 10, "heads": 5, "depth": 2, "context": CONTEXT}
    model = Decoder(
        ModelConfig(**(sizes | options)),
        vocabulary_size=len(VOCABULARY),
        pad_id=VOCABULARY.pad_id,
        never_generated=(VOCABULARY.pad_id, VOCABULARY.begin_id),
    )
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.requires_grad_(False).parameters():
        parameter.normal_(std=0.4, generator=generator)
    return model.eval()


class Oracle(nn.Module):
    """Stands in for a decoder: its next-word distributions are exactly those of a language."""

    def __init__(self, language: Language, vocabulary: Vocabulary = VOCABULARY, context: int = 5) -> None:
        super().__init__()
        self.language, self.vocabulary = language, vocabulary
        self.config = ModelConfig(context=context)
        self.pad_id = vocabulary.pad_id
        self.token_embedding = nn.Embedding(len(vocabulary), 1)

    def forward(self, tokens: Tensor, cache: None = None) -> Tensor:
        logits = torch.zeros(*tokens.shape, len(self.vocabulary))
        for row, ids in zip(logits, tokens.tolist(), strict=True):
            words = self.vocabulary.decode(ids)
            probs = torch.from_numpy(self.language.next_token_probs(words))
            possible = probs.sum(1) > 0  # after what is no prefix, and after the end, all ids are alike
            row[: len(probs)][possible] = -math.inf
            for position in possible.nonzero()[:, 0].tolist():
                row[position, self.vocabulary.column_ids] = probs[position].log()
        return logits


def compare(model: Any, truth: Truth = TRUTH, **options: Any) -> Comparison:
    return compare_with_truth(model, truth, **({"temperatures": TEMPERATURES, "draws": 7} | options))


# ---- brute force -------------------------------------------------------------------------------------------

Distribution = dict[str | None, float]  # over the next word, None for the end


def tempered(logits: NDArray[np.float64], temperature: float) -> NDArray[np.float64]:
    if temperature == 0:
        return np.eye(len(logits))[np.argmax(logits)]
    with np.errstate(divide="ignore"):
        weights = np.exp((logits - logits.max()) / temperature)
    return weights / weights.sum()


def next_words(model: nn.Module, prefix: Sentence, temperature: float) -> Distribution:
    """From a pass over this one prefix alone."""
    ids = [VOCABULARY.begin_id, *VOCABULARY.word_ids(prefix)]
    probs = tempered(model(torch.tensor([ids]))[0, -1].numpy(), temperature)
    assert probs[VOCABULARY.pad_id] == probs[VOCABULARY.begin_id] == 0
    words: Distribution = {word: probs[VOCABULARY.word_ids([word])[0]] for word in WORDS}
    return {**words, None: probs[VOCABULARY.end_id]}


class Everything:
    """All that a model can generate, with its mass: each ended sentence, and the rows without an end."""

    def __init__(self, model: nn.Module, temperature: float = 1.0) -> None:
        self.next: dict[Sentence, Distribution] = {}
        self.ended: dict[Sentence, float] = {}
        masses: dict[Sentence, float] = {(): 1.0}
        for length in range(CONTEXT):
            for prefix in product(WORDS, repeat=length):
                self.next[prefix] = next_words(model, prefix, temperature)
                self.ended[prefix] = masses[prefix] * self.next[prefix][None]
                for word in WORDS:
                    masses[(*prefix, word)] = masses[prefix] * self.next[prefix][word]
        self.unended = sum(masses[row] for row in product(WORDS, repeat=CONTEXT))
        assert math.fsum(self.ended.values()) + self.unended == pytest.approx(1, abs=1e-12)

    def kl(self) -> float:
        return math.fsum(p * math.log(p / self.ended[s]) for s, p in P.items())

    def divergence(self, prefix: Sentence) -> float:
        """KL of the next word after a prefix of the language."""
        begun = {s: p for s, p in P.items() if s[: len(prefix)] == prefix}
        mass: Counter[str | None] = Counter()
        for s, p in begun.items():
            mass[s[len(prefix)] if len(s) > len(prefix) else None] += p / sum(begun.values())
        return math.fsum(p * math.log(p / self.next[prefix][word]) for word, p in mass.items())

    def total_variation(self) -> float:
        """Half the distance over all outcomes: sentences of the language, others, rows without an end."""
        outcomes = math.fsum(abs(P.get(s, 0.0) - q) for s, q in self.ended.items())
        return (outcomes + self.unended) / 2

    def validity(self) -> float:
        return math.fsum(self.ended[s] for s in P)

    def coverage(self, draws: int) -> float:
        """Share of the language among `draws` sentences, averaged over all that can be drawn."""
        outcomes = [(s, self.ended[s]) for s in P]
        outcomes.append((None, 1 - self.validity()))
        seen = 0.0
        for drawn in product(outcomes, repeat=draws):
            different = {sentence for sentence, _ in drawn} - {None}
            seen += math.prod(mass for _, mass in drawn) * len(different) / len(P)
        return seen

    def legal_mass(self) -> float:
        mass, positions = 0.0, 0.0
        for sentence, p in P.items():
            for length in range(len(sentence) + 1):
                prefix = sentence[:length]
                can_follow = {s[length] if len(s) > length else None for s in P if s[:length] == prefix}
                mass += p * sum(self.next[prefix][word] for word in can_follow)
                positions += p
        return mass / positions


MODELS: list[dict[str, Any]] = [
    {"seed": seed, "causal": causal, "depth": depth}
    for seed, causal, depth in ((1, True, 2), (2, True, 1), (3, False, 1), (4, False, 2))
]


@pytest.mark.parametrize("options", MODELS, ids=str)
def test_the_measures_equal_sums_over_every_sequence(options: dict[str, Any]) -> None:
    model = decoder(**options)
    measures = compare(model).measures
    everything = Everything(model)
    assert measures["truth/kl"] == pytest.approx(everything.kl(), abs=1e-12)
    assert measures["truth/total_variation"] == pytest.approx(everything.total_variation(), abs=1e-12)
    assert measures["truth/legal_mass"] == pytest.approx(everything.legal_mass(), abs=1e-12)
    for temperature in TEMPERATURES:
        at = everything if temperature == 1 else Everything(model, temperature)
        name = measure_name("truth", temperature, "validity")
        assert measures[name] == pytest.approx(at.validity(), abs=1e-12)


@pytest.mark.parametrize("draws", [1, 2, 3])
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_coverage_is_the_mean_over_everything_that_can_be_drawn(temperature: float, draws: int) -> None:
    model = decoder(seed=5)
    measures = compare(model, draws=draws).measures
    expected = Everything(model, temperature).coverage(draws)
    assert measures[measure_name("truth", temperature, "coverage")] == pytest.approx(expected, abs=1e-12)


def test_coverage_agrees_with_drawing() -> None:
    q = Everything(decoder(seed=5)).ended
    masses = np.array([q[s] for s in P])
    masses = np.append(masses, 1 - masses.sum())
    drawn = np.random.default_rng(1).choice(len(masses), size=(20_000, 23), p=masses)
    shares = np.array([(drawn == sentence).any(1) for sentence in range(len(P))]).mean(0)
    coverage = compare(decoder(seed=5), draws=23).measures["truth/coverage"]
    assert coverage == pytest.approx(shares.mean(), abs=4 * shares.std() / math.sqrt(len(shares)))


@pytest.mark.parametrize("batch_size", [1, 2, 5])
@pytest.mark.parametrize("causal", [True, False])
def test_the_batch_size_changes_no_measure(batch_size: int, causal: bool) -> None:
    model = decoder(seed=6, causal=causal)
    whole, parts = compare(model), compare(model, batch_size=batch_size)
    assert parts.measures == pytest.approx(whole.measures, abs=1e-12)
    torch.testing.assert_close(parts.loss_by_position, whole.loss_by_position, rtol=0, atol=1e-12)


# ---- a model that is the language, or another one ----------------------------------------------------------


def test_for_the_truth_itself_every_distance_is_0() -> None:
    measures = compare(Oracle(LANGUAGE)).measures
    assert measures["truth/kl"] == pytest.approx(0, abs=1e-12)
    assert measures["truth/total_variation"] == pytest.approx(0, abs=1e-12)
    assert measures["truth/validity"] == pytest.approx(1, abs=1e-12)
    assert measures["truth/legal_mass"] == pytest.approx(1, abs=1e-12)
    coverage = sum(1 - (1 - p) ** 7 for p in P.values()) / 5
    assert measures["truth/coverage"] == pytest.approx(coverage, abs=1e-12)


def test_for_another_language_the_measures_are_those_of_the_two_tables() -> None:
    measures = compare(Oracle(SentenceTable(WORDS, Q))).measures
    assert measures["truth/kl"] == pytest.approx(sum(p * math.log(p / Q[s]) for s, p in P.items()), abs=1e-12)
    # By hand: 0.22 + 0.05 + 0.1 + 0.1 + 0.15 on the language, 0.32 outside of it.
    assert measures["truth/total_variation"] == pytest.approx((0.62 + 0.32) / 2, abs=1e-12)
    assert measures["truth/validity"] == pytest.approx(0.68, abs=1e-12)
    coverage = sum(1 - (1 - Q[s]) ** 7 for s in P) / 5
    assert measures["truth/coverage"] == pytest.approx(coverage, abs=1e-12)


def test_a_sentence_that_the_model_rules_out_is_infinitely_far_but_no_more_than_its_share() -> None:
    possible = {sentence: p for sentence, p in P.items() if sentence != ("c", "c")}
    measures = compare(Oracle(SentenceTable(WORDS, possible))).measures
    assert measures["truth/kl"] == math.inf
    assert measures["truth/total_variation"] == pytest.approx(P[("c", "c")], abs=1e-12)
    assert measures["truth/validity"] == pytest.approx(1, abs=1e-12)


def test_legal_mass_by_hand() -> None:
    # After "a" the other language puts 0.21/0.49 on "c", after "b" 0.01/0.17 on the end, after "b c"
    # 0.06/0.16 on "b", after "c" 0.04/0.09 on "a", and nothing else that cannot follow. P gets there with
    # 0.55, 0.2, 0.2 and 0.15.
    illegal = 0.55 * 21 / 49 + 0.2 * 1 / 17 + 0.2 * 6 / 16 + 0.15 * 4 / 9
    positions = 0.3 * 2 + 0.25 * 3 + 0.2 * 4 + 0.15 * 3 + 0.1 * 1
    measures = compare(Oracle(SentenceTable(WORDS, Q))).measures
    assert measures["truth/legal_mass"] == pytest.approx(1 - illegal / positions, abs=1e-12)


@pytest.mark.parametrize(("table", "validity"), [(P, 1.0), (Q, 0.0)])
def test_temperature_0_puts_all_mass_on_one_sentence(table: dict[Sentence, float], validity: float) -> None:
    # Greedy: "a" under P (0.55 begin so, 0.3 of them end there), "a c" under Q, which is no sentence of P.
    measures = compare(Oracle(SentenceTable(WORDS, table))).measures
    assert measures["truth/T0_0/validity"] == validity
    assert measures["truth/T0_0/coverage"] == validity / 5


def test_temperature_takes_the_tokens_distribution_to_a_power() -> None:
    # One word for ever or never: at temperature ½ the odds of "a" against "b" are squared.
    language = SentenceTable(("a", "b"), {("a",): 1.0})
    table = SentenceTable(("a", "b"), {("a",): 0.75, ("b",): 0.25})
    vocabulary = Vocabulary(("a", "b"))
    truth = Truth(language, vocabulary, limit=10, samples=2, seed=0)
    measures = compare(Oracle(table, vocabulary), truth).measures
    assert measures["truth/validity"] == pytest.approx(3 / 4, abs=1e-15)
    assert measures["truth/T0_5/validity"] == pytest.approx(9 / 10, abs=1e-15)
    assert measures["truth/T2_0/validity"] == pytest.approx(math.sqrt(3) / (math.sqrt(3) + 1), abs=1e-15)


def test_measures_stay_where_they_can_be() -> None:
    for seed in range(11):
        measures = compare(decoder(seed, causal=seed % 2 == 0)).measures
        kl, distance = measures["truth/kl"], measures["truth/total_variation"]
        assert kl > 0
        assert 0 < distance <= min(1.0, math.sqrt(kl / 2))  # Pinsker's inequality
        assert 1 - measures["truth/validity"] <= distance  # of the event "a sentence of the language"
        assert all(0 <= value <= 1 for name, value in measures.items() if name != "truth/kl")


def test_a_held_out_part_gets_its_mass_under_both() -> None:
    held_out = frozenset({("a", "b"), (), ("c", "c")})
    measures = compare(Oracle(SentenceTable(WORDS, Q)), holdout=held_out).measures
    assert measures["truth/holdout_mass"] == pytest.approx(0.2 + 0.25 + 0.05, abs=1e-12)
    assert measures["truth/holdout_share"] == pytest.approx(0.25 + 0.1 + 0.15, abs=1e-12)


# ---- position by position ----------------------------------------------------------------------------------


def captions() -> tuple[Truth, Vocabulary]:
    language = load("captions")
    vocabulary = Vocabulary(language.terminals)
    return Truth(language, vocabulary, limit=100, samples=2, seed=0), vocabulary


def test_the_entropy_by_position_of_the_captions_is_that_of_the_lesson() -> None:
    # After "a" comes photo ½, large ¼ or small ¼. Later half of the sentences have a choice at a time.
    half, style = math.log(2) / 2, 1.5 * math.log(2)
    truth, _ = captions()
    expected = [0, style, half, 0, half, half, 0]
    np.testing.assert_allclose(truth.entropy_by_position, expected, rtol=0, atol=1e-12)


def test_the_truth_loses_the_entropy_at_every_position() -> None:
    truth, vocabulary = captions()
    losses = compare(Oracle(truth.language, vocabulary, context=9), truth).loss_by_position
    np.testing.assert_allclose(losses, truth.entropy_by_position, rtol=0, atol=1e-12)


def test_losses_by_position_add_up_to_entropy_and_divergence() -> None:
    # A position counts as often as a sentence gets to it.
    comparison = compare(decoder(seed=7))
    np.testing.assert_allclose(TRUTH.reached, [1.0, 0.9, 0.6, 0.2], rtol=0, atol=1e-12)
    entropy = -sum(p * math.log(p) for p in P.values())
    assert float(TRUTH.reached @ TRUTH.entropy_by_position) == pytest.approx(entropy, abs=1e-12)
    total = float(TRUTH.reached @ comparison.loss_by_position)
    assert total == pytest.approx(entropy + comparison.measures["truth/kl"], abs=1e-12)


@pytest.mark.parametrize("causal", [True, False])
def test_divergences_by_position_are_those_of_the_next_word_and_add_up(causal: bool) -> None:
    model = decoder(seed=7, causal=causal)
    comparison, everything = compare(model), Everything(model)
    for position, reached in enumerate(TRUTH.reached.tolist()):
        here = math.fsum(p * everything.divergence(s[:position]) for s, p in P.items() if len(s) >= position)
        assert float(comparison.kl_by_position[position]) == pytest.approx(here / reached, abs=1e-12)
    assert float(TRUTH.reached @ comparison.kl_by_position) == pytest.approx(comparison.measures["truth/kl"], abs=1e-12)


# ---- prefix by prefix --------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 2])
def test_a_model_that_is_not_causal_is_run_on_each_prefix_by_itself(depth: int) -> None:
    model = decoder(seed=8, causal=False, depth=depth)
    rows = TRUTH.rows
    logits = prefix_logits(model, rows)
    assert logits.shape == (len(P), rows.shape[1] - 1, len(VOCABULARY))
    for row, position in product(range(len(rows)), range(rows.shape[1] - 1)):
        alone = model(rows[row : row + 1, : position + 1])[0, -1]
        torch.testing.assert_close(logits[row, position], alone, rtol=0, atol=1e-12)
    full = model(rows[:, :-1])
    assert (full - logits)[TRUTH.predicted].nan_to_num(0).abs().max() > 0.01


def test_a_causal_model_needs_one_pass() -> None:
    model = decoder(seed=8)
    passes: list[int] = []
    model.register_forward_pre_hook(lambda _, inputs: passes.append(len(inputs[0])))
    logits = prefix_logits(model, TRUTH.rows)
    assert passes == [len(P)]
    torch.testing.assert_close(logits, model(TRUTH.rows[:, :-1]), rtol=0, atol=0)


# ---- where the language is too large to write out ----------------------------------------------------------


def estimated(samples: int = 2_000, seed: int = 0) -> Truth:
    truth = Truth(LANGUAGE, VOCABULARY, limit=0, samples=samples, seed=seed)
    assert not truth.exact
    return truth


@pytest.mark.parametrize("options", MODELS, ids=str)
def test_estimates_agree_with_the_exact_measures(options: dict[str, Any]) -> None:
    model = decoder(**options)
    exact, estimates = compare(model).measures, compare(model, estimated()).measures
    names = ["truth/kl", "truth/total_variation", "truth/legal_mass"]
    assert set(estimates) == {*names, *(f"{name}_stderr" for name in names)}
    for name in names:
        assert 0 < estimates[f"{name}_stderr"] < 0.1
        assert abs(estimates[name] - exact[name]) < 4 * estimates[f"{name}_stderr"]


def test_estimates_are_means_over_the_drawn_sentences() -> None:
    model = decoder(seed=9)
    truth = estimated(samples=211)
    everything = Everything(model)
    q = everything.ended
    ratios = np.array([q[s] / P[s] for s in truth.sentences])
    divergences = np.array([sum(everything.divergence(s[:n]) for n in range(len(s) + 1)) for s in truth.sentences])
    measures = compare(model, truth).measures
    for name, values in (("kl", divergences), ("total_variation", np.maximum(1 - ratios, 0))):
        stderr = math.sqrt(sum((values - values.mean()) ** 2) / 210 / 211)
        assert measures[f"truth/{name}"] == pytest.approx(values.mean(), abs=1e-12)
        assert measures[f"truth/{name}_stderr"] == pytest.approx(stderr, rel=1e-10)


def test_what_is_estimated_for_the_total_variation_has_it_as_its_mean() -> None:
    everything = Everything(decoder(seed=9))
    mean = math.fsum(p * max(1 - everything.ended[s] / p, 0) for s, p in P.items())
    assert mean == pytest.approx(everything.total_variation(), abs=1e-12)


def test_the_estimate_of_the_legal_mass_is_a_ratio_with_the_error_of_one() -> None:
    model = decoder(seed=9)
    truth = estimated(samples=2_003)
    following = Everything(model).next
    mass, length = [], []
    for sentence in truth.sentences:
        legal = LANGUAGE.next_token_probs(sentence) > 0
        steps = [list(following[sentence[:t]].values()) for t in range(len(sentence) + 1)]
        mass.append(float((np.array(steps) * legal).sum()))
        length.append(len(steps))
    masses, lengths = np.array(mass), np.array(length)
    measures = compare(model, truth).measures
    assert measures["truth/legal_mass"] == pytest.approx(masses.sum() / lengths.sum(), abs=1e-12)
    # The jackknife needs no formula for the error of a ratio: leave each sentence out once.
    without = (masses.sum() - masses) / (lengths.sum() - lengths)
    jackknife = math.sqrt((len(without) - 1) * without.var())
    assert measures["truth/legal_mass_stderr"] == pytest.approx(jackknife, rel=0.01)


def test_estimates_for_the_truth_itself_are_exact() -> None:
    measures = compare(Oracle(LANGUAGE), estimated()).measures
    expected = {"truth/kl": 0, "truth/total_variation": 0, "truth/legal_mass": 1}
    for name, value in expected.items():
        assert measures[name] == pytest.approx(value, abs=1e-12)
        assert measures[f"{name}_stderr"] == pytest.approx(0, abs=1e-12)


def test_the_drawn_sentences_depend_on_the_seed_alone() -> None:
    state = torch.get_rng_state()
    first, again, other = estimated(seed=1), estimated(seed=1), estimated(seed=2)
    assert first.sentences == again.sentences != other.sentences
    assert torch.equal(torch.get_rng_state(), state)
    counts = Counter(first.sentences)
    for sentence, p in P.items():
        assert abs(counts[sentence] - 2_000 * p) < 4 * math.sqrt(2_000 * p * (1 - p))


def test_a_language_is_written_out_up_to_the_limit() -> None:
    assert Truth(LANGUAGE, VOCABULARY, limit=5, samples=2, seed=0).exact
    assert not Truth(LANGUAGE, VOCABULARY, limit=4, samples=2, seed=0).exact


# ---- the loss on a set of sentences ------------------------------------------------------------------------


def scored_sentences(model: nn.Module, n: int = 131) -> tuple[Tensor, Tensor]:
    """Rows and log-probabilities under the language."""
    sentences = LANGUAGE.sample(n, np.random.default_rng(2))
    return torch.from_numpy(VOCABULARY.encode(sentences)), torch.from_numpy(LANGUAGE.log_prob(sentences))


def excess(model: nn.Module, batch_size: int) -> dict[str, float]:
    rows, log_probs = scored_sentences(model)
    metric = ExcessLoss()
    for start in range(0, len(rows), batch_size):
        part = slice(start, start + batch_size)
        losses, tokens = sentence_losses(model(rows[part, :-1]), rows[part, 1:], VOCABULARY.pad_id)
        metric.update(losses, -log_probs[part], tokens)
    return {name: float(value) for name, value in metric.compute().items()}


@pytest.mark.parametrize("batch_size", [1, 7, 64, 131])
def test_the_loss_is_the_sum_over_the_set_divided_by_its_tokens(batch_size: int) -> None:
    model = decoder(seed=10)
    everything = Everything(model)
    sentences = LANGUAGE.sample(131, np.random.default_rng(2))
    tokens = sum(len(s) + 1 for s in sentences)
    loss = -math.fsum(math.log(everything.ended[s]) for s in sentences) / tokens
    floor = -math.fsum(math.log(P[s]) for s in sentences) / tokens
    measured = excess(model, batch_size)
    assert measured["loss"] == pytest.approx(loss, abs=1e-12)
    assert measured["floor"] == pytest.approx(floor, abs=1e-12)
    assert measured["excess_loss"] == pytest.approx(loss - floor, abs=1e-12)


@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_the_truth_has_no_excess_loss(batch_size: int) -> None:
    measured = excess(Oracle(LANGUAGE), batch_size)
    assert measured["excess_loss"] == pytest.approx(0, abs=1e-12)
    assert measured["leakage"] == 0


def test_a_reset_metric_has_forgotten_everything() -> None:
    metric = ExcessLoss()
    ones = torch.ones(3)
    metric.update(ones * 1e9, ones, ones.long())
    metric.reset()
    metric.update(5 * ones, 3 * ones, 2 * ones.long())
    assert {name: float(value) for name, value in metric.compute().items()} == {
        "loss": 2.5,
        "floor": 1.5,
        "excess_loss": 1.0,
        "leakage": 0.0,
    }


def test_padding_is_no_target() -> None:
    rows = torch.from_numpy(VOCABULARY.encode([("a",), (), ("b", "c", "a")]))
    logits = torch.randn(3, 4, len(VOCABULARY), generator=torch.Generator().manual_seed(3))
    losses, tokens = sentence_losses(logits, rows[:, 1:], VOCABULARY.pad_id)
    assert tokens.tolist() == [2, 1, 4]
    changed = logits.masked_fill((rows[:, 1:] == VOCABULARY.pad_id)[..., None], 1e3)
    assert torch.equal(sentence_losses(changed, rows[:, 1:], VOCABULARY.pad_id)[0], losses)


def leaks(differences: Sequence[float], tokens: int = 3) -> bool:
    values = torch.tensor(differences)
    metric = ExcessLoss()
    metric.update(10 + values, torch.full_like(values, 10), torch.full_like(values, tokens).long())
    leakage = float(metric.compute()["leakage"])
    assert leakage in (0, 1)
    return leakage == 1


@pytest.mark.parametrize(("excess", "flagged"), [(-0.011, True), (-0.009, False), (0, False), (1, False)])
def test_leakage_is_an_excess_below_minus_a_hundredth(excess: float, flagged: bool) -> None:
    assert leaks([3 * excess] * 100) == flagged  # three tokens each


@pytest.mark.parametrize(("errors", "flagged"), [(-3.1, True), (-2.9, False), (3.1, False)])
def test_leakage_is_an_excess_of_more_than_three_standard_errors(errors: float, flagged: bool) -> None:
    # Half of the differences 1 above their mean, half 1 below.
    stderr = float(np.std([1.0, -1.0] * 53, ddof=1)) / math.sqrt(106)
    mean = errors * stderr
    assert leaks([mean - 1, mean + 1] * 53) == flagged


def test_one_sentence_says_nothing_about_leakage() -> None:
    assert not leaks([-9.0])
    assert leaks([-9.0] * 2)


def test_a_model_that_sees_what_it_predicts_is_flagged() -> None:
    # In a full pass over whole sentences, as in training, a model without the mask can copy the next token.
    class Copier(Oracle):
        def forward(self, tokens: Tensor, cache: None = None) -> Tensor:
            following = torch.nn.functional.pad(tokens[:, 1:], (0, 1), value=VOCABULARY.end_id)
            return 5.0 * torch.nn.functional.one_hot(following, len(VOCABULARY))

    assert excess(Copier(LANGUAGE), batch_size=7)["leakage"] == 1
    assert excess(decoder(seed=10), batch_size=7)["leakage"] == 0


# ---- intervals ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_intervals_are_the_published_ones(successes: int, n: int, low: float, high: float) -> None:
    # Newcombe, "Two-sided confidence intervals for the single proportion" (1998), table I, method 3.
    assert wilson_interval(successes, n) == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize("n", [1, 2, 7, 53, 1_009])
def test_wilson_intervals_solve_their_equation(n: int) -> None:
    # The bounds are where the observed share is z standard errors away: (s/n − x)² = z² x (1 − x) / n.
    z = 1.9599639845400545
    for successes in {0, 1, n // 3, n // 2, n - 1, n}:
        share = successes / n
        roots = sorted(np.roots([1 + z * z / n, -2 * share - z * z / n, share * share]).real)
        low, high = wilson_interval(successes, n)
        assert (low, high) == pytest.approx(tuple(roots), abs=1e-7 if successes in (0, n) else 1e-12)
        assert 0 <= low <= share <= high <= 1
    assert wilson_interval(0, n)[0] == 0
    assert wilson_interval(n, n)[1] == 1


# ---- generated sentences -----------------------------------------------------------------------------------


def draw(model: nn.Module, n: int, temperature: float = 1.0, batch_size: int = 1_024, **options: Any) -> list[Sample]:
    how = How(sampling=Sampling(temperature=temperature), seed=11, **options)
    return draw_samples(model, LANGUAGE, VOCABULARY, [()] * n, how=how, batch_size=batch_size)


def sample(words: str, *, valid: bool = True, ended: bool = True, temperature: float = 1.0) -> Sample:
    return Sample(temperature, tuple(words.split()), ended, valid, 0.0, 0.0, (), ())


@pytest.mark.parametrize("options", MODELS, ids=str)
@pytest.mark.parametrize("temperature", [0.0, 0.8, 2.0])
def test_samples_are_scored_under_language_and_model(options: dict[str, Any], temperature: float) -> None:
    model = decoder(**options)
    everything = Everything(model)  # at temperature 1, whatever they were drawn at
    for drawn in draw(model, 100, temperature, batch_size=17):
        assert drawn.temperature == temperature
        if drawn.ended:
            assert drawn.valid == (drawn.words in P)
            assert drawn.log_prob_model == pytest.approx(math.log(everything.ended[drawn.words]), abs=1e-11)
            p = P.get(drawn.words, 0.0)
            assert drawn.log_prob_language == pytest.approx(math.log(p) if p else -math.inf, abs=1e-12)
        else:
            assert len(drawn.words) == CONTEXT
            assert not drawn.valid
            assert drawn.log_prob_language == -math.inf


def test_a_sentence_without_an_end_is_not_valid() -> None:
    cut = draw(decoder(seed=12), 200, max_new_tokens=1)
    words = [drawn for drawn in cut if drawn.words == ("a",)]
    assert words
    for drawn in words:  # "a" and an end would be the most probable sentence
        assert not drawn.ended
        assert not drawn.valid
        assert drawn.log_prob_language == -math.inf


def test_samples_go_on_from_their_prompts() -> None:
    prompts = [("a",), (), ("b", "c")]
    drawn = draw_samples(decoder(), LANGUAGE, VOCABULARY, prompts, how=How(seed=1))
    assert [s.words[: len(p)] for s, p in zip(drawn, prompts, strict=True)] == prompts
    with pytest.raises(ValueError, match="unknown word 'd'"):
        draw_samples(decoder(), LANGUAGE, VOCABULARY, [("d",)], how=How(seed=1))


def test_samples_are_what_is_generated_from_the_seed() -> None:
    model = decoder(seed=12)
    for seed in (1, 2):
        how = How(sampling=Sampling(temperature=0.8), seed=seed, max_new_tokens=3)
        drawn = draw_samples(model, LANGUAGE, VOCABULARY, [()] * 31, how=how)
        generated = generate(model, [[VOCABULARY.begin_id]] * 31, end_id=VOCABULARY.end_id, how=how)
        rows = generated.tokens.tolist()
        assert [sample.words for sample in drawn] == [VOCABULARY.decode(row) for row in rows]
        assert [sample.ended for sample in drawn] == [VOCABULARY.end_id in row for row in rows]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("batch_size", [1, 3, 1_024])
def test_sequence_log_probs_are_sums_over_the_prefixes(causal: bool, batch_size: int) -> None:
    model = decoder(seed=13, causal=causal)
    everything = Everything(model)
    sentences: list[Sentence] = [("a",), (), ("b", "c", "a", "a"), ("a",), ("c", "c")]
    rows = torch.from_numpy(VOCABULARY.encode(sentences))
    expected = [math.log(everything.ended[s]) for s in sentences]
    log_q = sequence_log_probs(model, rows, batch_size=batch_size)
    np.testing.assert_allclose(log_q.numpy(), expected, rtol=0, atol=1e-11)


def test_measures_of_samples_by_hand() -> None:
    # Groups of three: (a, a, b) (b, x, a without end) (x, x, x); the tenth counts for validity alone.
    x = sample("c a", valid=False)
    a, b, cut = sample("a"), sample("b"), sample("a", valid=False, ended=False)
    measures = measure_samples([a, a, b, b, x, cut, x, x, x, a], language_size=5, draws=3)
    assert measures["sampled/validity"] == 5 / 10
    assert measures["sampled/distinct"] == pytest.approx((2 / 3 + 3 / 3 + 1 / 3) / 3, abs=1e-15)
    assert measures["sampled/coverage"] == pytest.approx((2 / 5 + 1 / 5 + 0) / 3, abs=1e-15)
    low, high = wilson_interval(5, 10)
    assert (measures["sampled/validity_low"], measures["sampled/validity_high"]) == (low, high)
    # Student's t for 2 degrees of freedom is √(2 a² / (1 − a²)), a = 0.95; the deviation of 1/3, 2/3, 1 is 1/3.
    t = math.sqrt(2 * 0.95**2 / (1 - 0.95**2))
    assert measures["sampled/distinct_low"] == 0.0 > 2 / 3 - t * (1 / 3) / math.sqrt(3)
    assert measures["sampled/distinct_high"] == 1.0  # it would be above: no share is
    half = t * 0.2 / math.sqrt(3)
    assert measures["sampled/coverage_low"] == 0.0
    assert measures["sampled/coverage_high"] == pytest.approx(0.2 + half, abs=1e-12)


@pytest.mark.parametrize("groups", [2, 3, 5, 6])
def test_groups_that_happen_to_be_equal_get_the_interval_of_as_many_yes_or_noes(groups: int) -> None:
    # One sentence over and over: 1/5 distinct, 1/5 of the language, in each group of five.
    for temperature in (0.5, 1.0):
        drawn = [sample("a", temperature=temperature)] * 5 * groups
        measures = measure_samples(drawn, language_size=5, draws=5)
        for name in ("distinct", "coverage"):
            name = measure_name("sampled", temperature, name)
            interval = (measures[f"{name}_low"], measures[f"{name}_high"])
            assert measures[name] == pytest.approx(1 / 5, abs=1e-15)
            assert interval == pytest.approx(wilson_interval(groups / 5, groups), abs=1e-12)


@pytest.mark.parametrize("groups", [2, 5])
def test_equal_groups_of_greedy_sentences_leave_no_doubt(groups: int) -> None:
    measures = measure_samples([sample("a", temperature=0.0)] * 5 * groups, language_size=5, draws=5)
    for name in ("distinct", "coverage"):
        bounds = [measures[f"sampled/T0_0/{name}{bound}"] for bound in ("_low", "", "_high")]
        assert bounds == [1 / 5] * 3


def test_two_sentences_of_the_same_words_with_and_without_an_end_are_distinct() -> None:
    pair = [sample("a"), sample("a", valid=False, ended=False)]
    assert measure_samples(pair * 2, language_size=5, draws=2)["sampled/distinct"] == 1


def test_about_95_of_100_intervals_hold_the_exact_value() -> None:
    model = decoder(seed=14)
    exact = compare(model, draws=5).measures
    drawn = draw(model, 20_000)
    hits = {"validity": 0, "coverage": 0}
    for start in range(0, 20_000, 200):
        measures = measure_samples(drawn[start : start + 200], language_size=5, draws=5)
        for name in hits:
            low, high = measures[f"sampled/{name}_low"], measures[f"sampled/{name}_high"]
            hits[name] += low <= exact[f"truth/{name}"] <= high
    # 95 of 100, give or take three deviations of a binomial number.
    assert 89 <= hits["validity"] <= 99
    assert 89 <= hits["coverage"] <= 99


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("causal", [True, False])
def test_the_exact_validity_lies_near_the_sampled_interval(causal: bool, temperature: float) -> None:
    model = decoder(seed=15, causal=causal)
    measures = measure_samples(draw(model, 2_000, temperature), language_size=5, draws=20)
    low, high = (measures[measure_name("sampled", temperature, f"validity_{end}")] for end in ("low", "high"))
    exact = compare(model).measures[measure_name("truth", temperature, "validity")]
    # Twice as wide, four deviations: of six intervals of 95 % one may well miss.
    assert low - (high - low) / 2 <= exact <= high + (high - low) / 2


def test_the_estimate_of_validity_is_a_share_with_its_standard_error() -> None:
    samples = [sample("a", temperature=0.8)] * 30 + [sample("b", valid=False, temperature=0.8)] * 10
    z2 = 1.9599639845400545**2
    assert estimate_validity(samples) == {
        "truth/T0_8/validity": 0.75,
        # Half of Wilson's interval in units of z: √(p (1 − p) / n + z² / 4n²) / (1 + z² / n)
        "truth/T0_8/validity_stderr": pytest.approx(
            math.sqrt(0.75 * 0.25 / 40 + z2 / (4 * 40**2)) / (1 + z2 / 40), abs=1e-15
        ),
    }
    nothing = estimate_validity([sample("b", valid=False)] * 10)
    assert nothing["truth/validity"] == 0 < nothing["truth/validity_stderr"]


# ---- names -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("temperature", "name"),
    [
        (1.0, "truth/validity"),
        (0.8, "truth/T0_8/validity"),
        (2.0, "truth/T2_0/validity"),
        (0.0, "truth/T0_0/validity"),
        (0.25, "truth/T0_25/validity"),
        (1e-5, "truth/T0_00001/validity"),
        (100.0, "truth/T100_0/validity"),
    ],
)
def test_names_carry_the_temperature_unless_it_is_1(temperature: float, name: str) -> None:
    assert measure_name("truth", temperature, "validity") == name


def test_wandb_can_filter_every_name() -> None:
    names = measure_names([0.0, 0.3, 1.0, 1e-5], exact=True, holdout=True)
    names += measure_names([0.0, 0.3, 1.0, 1e-5], exact=False, holdout=False)
    for name in names:
        assert name.replace("/", "").replace("_", "").isalnum()
        assert name.isascii()


@pytest.mark.parametrize("temperatures", [[1.0], [0.5, 2.0], [2.0, 0.0, 1.0]])
@pytest.mark.parametrize("holdout", [True, False])
@pytest.mark.parametrize("exact", [True, False])
def test_names_are_exactly_what_is_measured(temperatures: list[float], holdout: bool, exact: bool) -> None:
    model, truth = decoder(), TRUTH if exact else estimated(samples=50)
    held_out = frozenset({("a",)}) if holdout else frozenset()
    measured = list(compare(model, truth, temperatures=temperatures, holdout=held_out).measures)
    for temperature in temperatures:
        samples = draw(model, 14, temperature)
        measured += measure_samples(samples, language_size=5 if exact else None, draws=7)
        if not exact:
            measured += estimate_validity(samples)
    names = measure_names(temperatures, exact=exact, holdout=holdout)
    assert sorted(names) == sorted(measured)
    assert len(set(names)) == len(names)


# ---- what is refused, and what stays -----------------------------------------------------------------------


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("exact", [True, False])
def test_a_diverged_model_is_refused(causal: bool, exact: bool) -> None:
    model = decoder(causal=causal).train()
    model.head.weight[3, 2] = math.nan
    with pytest.raises(ValueError, match="NaN"):
        compare(model, TRUTH if exact else estimated())
    with pytest.raises(ValueError, match="NaN"):
        draw(model, 3)
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_and_the_random_state_stay_and_dropout_never_acts(training: bool) -> None:
    quiet = decoder()
    model = decoder(dropout=0.5).train(training)
    state = torch.get_rng_state()
    assert compare(model).measures == compare(quiet).measures
    assert draw(model, 50) == draw(quiet, 50)
    assert torch.equal(sequence_log_probs(model, TRUTH.rows), sequence_log_probs(quiet, TRUTH.rows))
    assert all(module.training == training for module in model.modules())
    assert torch.equal(torch.get_rng_state(), state)
