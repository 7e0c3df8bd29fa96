"""Generation: against a loop that is plainly right, and the laws of its random numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from grammarlab.config import ModelConfig, NormOrder, Positions
from grammarlab.generation import How, Sampling, draw, generate, next_token_log_probs, row_uniforms
from grammarlab.model import Decoder

PAD, BEGIN, END = 0, 1, 2
VOCABULARY, CONTEXT = 7, 11
LARGEST_BELOW_ONE = math.nextafter(1, 0)
TEMPERATURES = [0.0, 0.3, 1.0, 2.5]
# Seven prompts of different lengths, the last one filling the context.
PROMPTS = [
    [BEGIN],
    [BEGIN, 3],
    [BEGIN],
    [BEGIN, 5, 6, 3],
    [BEGIN, 4],
    [BEGIN, 6, 6],
    [BEGIN, 3, 4, 5, 6, 3, 4, 5, 6, 3, 4],
]


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def decoder(seed: int = 1, **options: Any) -> Decoder:
    """Large matrices and no biases, so that what is drawn hangs on all that came before."""
    sizes: dict[str, Any] = {
        "width": 10,
        "heads": 5,
        "depth": 2,
        "context": CONTEXT,
        "feedforward_multiple": 3,
    }
    config = ModelConfig(**(sizes | options))
    model = Decoder(config, vocabulary_size=VOCABULARY, pad_id=PAD, never_generated=(PAD, BEGIN))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2:
                parameter.normal_(std=0.7, generator=generator)
            else:
                parameter.fill_(1.0 if name.endswith("norm.weight") else 0.0)
    return model.eval()


def rows_of(
    model: Decoder,
    prompts: Sequence[Sequence[int]] = PROMPTS,
    *,
    rows: Sequence[int] | None = None,
    batch_size: int = 1_024,
    temperature: float = 1.0,
    **options: Any,
) -> Tensor:
    how = How(sampling=Sampling(temperature=temperature), **options)
    return generate(model, prompts, end_id=END, how=how, rows=rows, batch_size=batch_size).tokens


def run(model: Decoder, prompts: Sequence[Sequence[int]] = PROMPTS, **options: Any) -> list[list[int]]:
    """The generated rows without the padding on their right."""
    rows = rows_of(model, prompts, **options).tolist()
    return [row[: max(i + 1 for i, token in enumerate(row) if token != PAD)] for row in rows]


def naive(
    model: Decoder,
    prompts: Sequence[Sequence[int]] = PROMPTS,
    *,
    temperature: float,
    seed: int,
    max_new_tokens: float = math.inf,
) -> list[list[int]]:
    """Row by row, token by token, everything computed anew."""
    rows = []
    for index, prompt in enumerate(prompts):
        row = list(prompt)
        uniforms = row_uniforms(seed, range(index, index + 1), CONTEXT + 1)[0].tolist()
        while row[-1] != END and len(row) <= CONTEXT and len(row) - len(prompt) < max_new_tokens:
            with torch.no_grad():
                logits = model(torch.tensor([row]))[0, -1].numpy()
            row.append(pick(logits, temperature, uniforms[len(row)]))
        rows.append(row)
    return rows


def pick(logits: Any, temperature: float, uniform: float) -> int:
    if temperature == 0:
        return max(range(len(logits)), key=lambda token: logits[token])  # the first of the largest
    weights = np.exp((logits - logits.max()) / temperature)
    cumulative = accumulate(weights / weights.sum())
    return next(token for token, mass in enumerate(cumulative) if mass > uniform)


# ---- the distribution --------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.3, 0.8, 1.0, 2.0])
def test_log_probs_are_the_softmax_of_logits_over_temperature(temperature: float) -> None:
    logits = torch.tensor([[0.5, -1.25, 3.0, -math.inf], [800.0, 799.0, 100.0, 798.5]])
    probs = next_token_log_probs(logits, temperature).exp().numpy()
    for row, expected in zip(probs, logits.numpy(), strict=True):
        weights = np.exp((expected - expected.max()) / temperature)
        np.testing.assert_allclose(row, weights / weights.sum(), rtol=1e-13, atol=0)


def test_log_probs_are_float64_whatever_the_logits_are() -> None:
    logits = torch.tensor([[0.0, 1.0, -2.0]], dtype=torch.bfloat16)
    for temperature in TEMPERATURES:
        assert next_token_log_probs(logits, temperature).dtype == torch.float64


def test_temperature_0_puts_all_mass_on_the_first_of_the_largest() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, 2.0], [5.0, 5.0, 5.0, 5.0], [-math.inf, -2.0, -7.0, -2.0]])
    probs = next_token_log_probs(logits, 0.0).exp()
    assert probs.tolist() == [[0, 1, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0]]


@pytest.mark.parametrize("temperature", [1e-9, 1e-300, 5e-324])
def test_a_tiny_temperature_equals_greedy_without_overflow(temperature: float) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(53, VOCABULARY, generator=generator) * 30
    logits[:, BEGIN] = -math.inf
    tiny = next_token_log_probs(logits, temperature).exp()
    assert torch.equal(tiny, next_token_log_probs(logits, 0.0).exp())


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_logits_that_are_not_a_number_are_refused(temperature: float) -> None:
    logits = torch.zeros(3, VOCABULARY)
    logits[1, 4] = math.nan
    with pytest.raises(ValueError, match="NaN"):
        next_token_log_probs(logits, temperature)


# ---- one draw ----------------------------------------------------------------------------------------------


def draw_at(probs: Sequence[float], uniforms: Tensor) -> Tensor:
    return draw(torch.tensor(probs).log().expand(len(uniforms), -1), uniforms)


def test_draw_inverts_the_cumulative_distribution() -> None:
    # All exact in binary, so the borders are exact too: each belongs to the next id.
    uniforms = torch.arange(8) / 8
    assert draw_at([0.5, 0.25, 0.0, 0.125, 0.125], uniforms).tolist() == [0, 0, 0, 0, 1, 1, 3, 4]


@pytest.mark.parametrize("probs", [[0.1, 0.2, 0.3, 0.4], [0.0, 0.1, 0.9, 0.0], [1 / 3, 1 / 7, 11 / 21]])
def test_frequencies_of_draws_are_the_probabilities(probs: list[float]) -> None:
    # Evenly spaced numbers hit an interval of length p either ⌊n p⌋ or ⌈n p⌉ times: no room for chance.
    n = 1_000_003
    counts = torch.bincount(draw_at(probs, (torch.arange(n) + 0.5) / n), minlength=len(probs))
    assert all(abs(count - n * p) <= 1 for count, p in zip(counts.tolist(), probs, strict=True))


@pytest.mark.parametrize("uniform", [0.0, 5e-324, 0.5, LARGEST_BELOW_ONE])
def test_draw_never_returns_an_id_of_probability_0(uniform: float) -> None:
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(1_009, 13, generator=generator) * 3
    forbidden = torch.rand(logits.shape, generator=generator) < 0.6
    forbidden[:, 0] = forbidden[:, -1] = True  # at both ends, where the borders are
    forbidden[:, 6] = False
    logits = logits.masked_fill(forbidden, -math.inf)
    for temperature in (1.0, 1e-300):
        log_probs = next_token_log_probs(logits, temperature)
        drawn = draw(log_probs, torch.full((len(logits),), uniform))
        assert (log_probs.gather(1, drawn[:, None]) > -math.inf).all()


def test_forbidden_ids_are_not_among_a_million_draws() -> None:
    logits = torch.zeros(VOCABULARY)
    logits[[PAD, BEGIN]] = -math.inf
    uniforms = torch.from_numpy(np.random.default_rng(3).random(1_000_000))
    drawn = draw(next_token_log_probs(logits, 1.0).expand(len(uniforms), -1), uniforms)
    counts = torch.bincount(drawn, minlength=VOCABULARY)
    assert counts[[PAD, BEGIN]].tolist() == [0, 0]
    assert len(counts) == VOCABULARY
    assert (counts[END:] > 0).all()


# ---- the random numbers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [range(1), range(3, 9), range(250, 520), range(256, 512), range(999, 1_000)])
def test_a_rows_numbers_do_not_depend_on_the_other_rows(rows: range) -> None:
    every = row_uniforms(5, range(1_024), 7)
    assert torch.equal(row_uniforms(5, rows, 7), every[rows.start : rows.stop])


def test_fewer_positions_are_a_prefix_of_more() -> None:
    more = row_uniforms(5, range(300), 13)
    for positions in range(14):
        assert torch.equal(row_uniforms(5, range(300), positions), more[:, :positions])


def test_numbers_are_at_least_0_below_1_and_never_the_same() -> None:
    numbers = torch.cat([row_uniforms(seed, range(600), 7) for seed in range(5)])
    assert numbers.dtype == torch.float64
    assert ((numbers >= 0) & (numbers < 1)).all()
    assert numbers.unique().numel() == 5 * 600 * 7


def test_numbers_are_uniform_in_rows_and_in_positions() -> None:
    numbers = row_uniforms(7, range(2_000), 500).numpy()
    for axis, n in ((0, 2_000), (1, 500)):
        below = (numbers < 0.5).mean(axis)
        assert np.abs(below - 0.5).max() < 5 * 0.5 / math.sqrt(n)
    counts, _ = np.histogram(numbers, bins=10, range=(0, 1))
    assert np.abs(counts - 100_000).max() < 4 * math.sqrt(100_000 * 0.9)


# ---- against the loop --------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("limit", [None, 1, 4])
def test_generation_equals_the_naive_loop(temperature: float, causal: bool, limit: int | None) -> None:
    model = decoder(causal=causal)
    cut = {} if limit is None else {"max_new_tokens": limit}
    for seed in range(5):
        rows = run(model, temperature=temperature, seed=seed, **cut)
        assert rows == naive(model, temperature=temperature, seed=seed, **cut)


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("norm_order", list(NormOrder))
@pytest.mark.parametrize("positions", list(Positions))
def test_the_cache_changes_no_token(positions: Positions, norm_order: NormOrder, temperature: float) -> None:
    model = decoder(positions=positions, norm_order=norm_order)
    for seed in range(7):
        cached = run(model, temperature=temperature, seed=seed, cache=True)
        assert cached == run(model, temperature=temperature, seed=seed, cache=False)
        assert cached == run(model, temperature=temperature, seed=seed)


def test_the_cache_changes_no_token_in_float32() -> None:
    # Rounding differs, but no number of these seeds falls into so small a gap.
    model, prompts = decoder().float(), [[BEGIN]] * 50
    assert run(model, prompts, seed=5, cache=True) == run(model, prompts, seed=5, cache=False)


@pytest.mark.parametrize("causal", [True, False])
def test_the_rows_of_these_tests_end_early_late_and_never(causal: bool) -> None:
    # Else the comparisons above would compare little.
    rows = [row for seed in range(5) for row in run(decoder(causal=causal), seed=seed)]
    assert {row[-1] == END for row in rows} == {True, False}
    assert len({len(row) for row in rows}) > 5
    assert len({tuple(row) for row in rows}) > 25


# ---- rows --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("batch_size", [1, 2, 3, 7])
def test_the_batch_size_changes_no_row(batch_size: int, cache: bool) -> None:
    together = run(decoder(), seed=3, cache=cache)
    assert run(decoder(), seed=3, cache=cache, batch_size=batch_size) == together


@pytest.mark.parametrize("batch_size", [1, 2, 3])
def test_batches_of_unequal_width_are_padded_to_one(batch_size: int) -> None:
    together = rows_of(decoder(), seed=3, max_new_tokens=2)
    parts = rows_of(decoder(), seed=3, max_new_tokens=2, batch_size=batch_size)
    assert torch.equal(parts, together)


def test_rows_beyond_one_block_of_numbers_do_not_depend_on_the_batch_size() -> None:
    model, prompts = decoder(), [[BEGIN]] * 600
    together = run(model, prompts, seed=3)
    assert run(model, prompts, seed=3, batch_size=97) == together
    assert together[:256] != together[256:512]


@pytest.mark.parametrize("index", range(7))
def test_a_row_does_not_depend_on_its_batch_mates(index: int) -> None:
    model = decoder()
    mates = [[BEGIN, 4, 4]] * index + [PROMPTS[index]] + [[BEGIN, 3, 3, 3, 3, 3]] * 3
    assert run(model, mates, seed=3)[index] == run(model, seed=3)[index]


def test_a_row_depends_on_its_number_and_on_the_seed() -> None:
    model = decoder()
    rows = run(model, [[BEGIN]] * 7, seed=3)
    assert len({tuple(row) for row in rows}) > 1
    assert run(model, [[BEGIN]] * 7, seed=4) != rows


def test_equal_prompts_give_equal_greedy_rows() -> None:
    rows = run(decoder(), [[BEGIN, 5]] * 5, temperature=0.0)
    assert rows == rows[:1] * 5


# ---- stopping ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cache", [True, False])
def test_max_new_tokens_only_cuts(cache: bool) -> None:
    model = decoder()
    whole = run(model, seed=3, cache=cache)
    for limit in range(1, CONTEXT + 3):
        cut = [row[: len(prompt) + limit] for row, prompt in zip(whole, PROMPTS, strict=True)]
        assert run(model, seed=3, cache=cache, max_new_tokens=limit) == cut


def test_rows_that_ended_are_padded_and_the_others_go_on() -> None:
    rows = rows_of(decoder(), seed=3).tolist()
    lengths = []
    for row, prompt in zip(rows, PROMPTS, strict=True):
        assert row[: len(prompt)] == prompt
        length = row.index(END) + 1 if END in row else len(row)
        assert PAD not in row[:length]
        assert set(row[length:]) <= {PAD}
        lengths.append(length)
    assert min(lengths) < max(lengths)


@pytest.mark.parametrize("cache", [True, False])
def test_the_width_is_that_of_the_longest_row(cache: bool) -> None:
    model = decoder()
    for end_bias in (0.0, 3.0, 1e9):
        with torch.no_grad():
            model.head.bias[END] = end_bias
        rows = rows_of(model, PROMPTS[:3], seed=3, cache=cache)
        assert (rows[:, -1] != PAD).any()


def test_a_row_stops_when_the_context_is_full_and_gets_one_last_token() -> None:
    model = decoder(context=5)
    with torch.no_grad():
        model.head.bias[END] = -1e9
    assert [len(row) for row in run(model, [[BEGIN], [BEGIN, 3, 4, 5, 6], [BEGIN, 3]])] == [6, 6, 6]


@pytest.mark.parametrize("cache", [True, False])
def test_a_prompt_that_fills_the_context_gets_one_token(cache: bool) -> None:
    model = decoder()
    (row,) = run(model, [PROMPTS[-1]], temperature=0.0, cache=cache)
    with torch.no_grad():
        best = model(torch.tensor([PROMPTS[-1]]))[0, -1].argmax()
    assert row == [*PROMPTS[-1], int(best)]


@pytest.mark.parametrize("temperature", [1.0, 50.0])
def test_padding_and_begin_are_never_generated(temperature: float) -> None:
    model = decoder()
    with torch.no_grad():
        model.head.bias[[PAD, BEGIN]] = 1e6
    for row in run(model, [[BEGIN]] * 400, temperature=temperature):
        assert not {PAD, BEGIN} & set(row[1:])


def test_no_prompts_give_no_rows() -> None:
    assert rows_of(decoder(), []).shape[0] == 0


# ---- greedy ------------------------------------------------------------------------------------------------


def test_greedy_takes_the_first_of_equal_logits() -> None:
    model = decoder()
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.copy_(torch.tensor([9.0, 9.0, 1.0, 2.0, 5.0, 5.0, 5.0]))
    assert run(model, [[BEGIN]], temperature=0.0, max_new_tokens=3) == [[BEGIN, 4, 4, 4]]


@pytest.mark.parametrize("temperature", [1e-9, 1e-300])
@pytest.mark.parametrize("cache", [True, False])
def test_greedy_is_the_limit_of_small_temperatures_for_every_seed(temperature: float, cache: bool) -> None:
    greedy = run(decoder(), temperature=0.0, cache=cache)
    for seed in range(5):
        assert run(decoder(), temperature=temperature, seed=seed, cache=cache) == greedy
        assert run(decoder(), temperature=0.0, seed=seed, cache=cache) == greedy


# ---- what is refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("cache", [True, False])
def test_a_diverged_model_is_refused(temperature: float, cache: bool) -> None:
    model = decoder()
    with torch.no_grad():
        model.blocks[1].attention.out.weight[3, 2] = math.nan
    with pytest.raises(ValueError, match="NaN"):
        run(model, temperature=temperature, cache=cache)


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(ValueError, match="at least the begin token"):
        run(decoder(), [[BEGIN], []])


def test_a_prompt_longer_than_the_context_is_refused() -> None:
    with pytest.raises(ValueError, match="12 tokens is longer than the context of 11"):
        run(decoder(), [[BEGIN], [BEGIN] + [3] * CONTEXT])


def test_a_cache_for_a_model_that_is_not_causal_is_refused() -> None:
    with pytest.raises(ValueError, match=r"model\.causal=false cannot use a cache"):
        run(decoder(causal=False), cache=True)


# ---- what stays as it was ----------------------------------------------------------------------------------


@pytest.mark.parametrize("cache", [True, False])
def test_calls_are_independent(cache: bool) -> None:
    model = decoder()
    first = run(model, seed=3, cache=cache)
    run(model, [[BEGIN, 6]] * 13, seed=8, temperature=2.0, cache=cache)
    assert run(model, seed=3, cache=cache) == first


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_stays_and_dropout_never_acts(training: bool) -> None:
    quiet = run(decoder(), seed=3)
    model = decoder(dropout=0.5).train(training)
    assert run(model, seed=3) == quiet
    assert all(module.training == training for module in model.modules())


def test_the_mode_stays_also_after_an_error() -> None:
    model = decoder().train()
    with torch.no_grad():
        model.head.bias[3] = math.nan
    with pytest.raises(ValueError, match="NaN"):
        run(model)
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_the_random_states_of_torch_and_numpy_stay(temperature: float) -> None:
    model = decoder(dropout=0.5).train()
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].tolist()
    run(model, seed=3, temperature=temperature)
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert np.random.get_state()[1].tolist() == numpy_state


def test_generation_follows_no_global_seed() -> None:
    model = decoder()
    torch.manual_seed(1)
    first = run(model, seed=3)
    torch.manual_seed(2)
    assert run(model, seed=3) == first


# ---- the work done -----------------------------------------------------------------------------------------


def seen_lengths(model: Decoder, module: nn.Module, cache: bool) -> list[int]:
    lengths: list[int] = []
    hook = module.register_forward_pre_hook(lambda _, inputs: lengths.append(inputs[0].shape[1]))
    run(model, [[BEGIN, 3, 4], [BEGIN, 5, 6, 3]], cache=cache, compile=False)
    hook.remove()
    return lengths


def test_with_the_cache_every_step_after_the_prompt_sees_one_token() -> None:
    model = decoder()
    with torch.no_grad():
        model.head.bias[END] = -1e9  # so that every position up to the context is computed
    for block in model.blocks:
        assert seen_lengths(model, block.attention, cache=True) == [3] + [1] * (CONTEXT - 3)
        assert seen_lengths(model, block.attention, cache=False) == list(range(3, CONTEXT + 1))


def test_nothing_is_computed_once_all_rows_ended() -> None:
    model = decoder()
    with torch.no_grad():
        model.head.bias[END] = 1e9
    assert seen_lengths(model, model.blocks[0], cache=True) == [3, 1]
