"""What may be drawn: each filter by hand, their order, and the same filters of transformers."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from grammarlab.generation import Sampling, draw

DYADIC = torch.tensor([0.5, 0.25, 0.125, 0.125], dtype=torch.float64).log()


def kept(logits: Tensor, **options: Any) -> list[int]:
    return Sampling(**options).log_probs(logits).isfinite().nonzero()[:, 0].tolist()


@pytest.mark.parametrize("top_p, expected", [(0.5, [0]), (0.75, [0, 1]), (0.875, [0, 1, 2]), (1.0, [0, 1, 2, 3])])
def test_top_p_is_the_smallest_set_whose_mass_reaches_p(top_p: float, expected: list[int]) -> None:
    assert kept(DYADIC, top_p=top_p) == kept(DYADIC.float(), top_p=top_p) == expected
    order = torch.tensor([2, 0, 3, 1])
    assert kept(DYADIC[order], top_p=top_p) == sorted(order.tolist().index(i) for i in expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("options", [{"top_p": 1e-8}, {"top_k": 1}, {"min_p": 1.0}, {"top_p": 5e-324}])
def test_the_narrowest_filters_are_greedy(dtype: torch.dtype, options: dict[str, float]) -> None:
    logits = torch.randperm(50, generator=torch.Generator().manual_seed(1)).to(dtype) / 50  # no two alike
    expected = Sampling(temperature=0).log_probs(logits)
    assert torch.equal(Sampling(**options).log_probs(logits), expected)  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{"top_k": 50}, {"top_k": 10**6}, {"top_p": 1.0}, {"min_p": 0.0}, {}])
def test_the_widest_filters_change_nothing(options: dict[str, Any]) -> None:
    logits = torch.linspace(-200, 3, 50, dtype=torch.float64)
    assert_close(Sampling(**options).log_probs(logits), logits.log_softmax(-1), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("options", [{"top_k": 2}, {"top_p": 0.5}, {"top_p": 0.26}])
def test_of_equal_ones_those_with_the_lower_ids_stay(options: dict[str, Any]) -> None:
    assert kept(torch.zeros(4), **options) == [0, 1]
    assert kept(torch.tensor([0.0, 1.0, 0.0, 0.0]), top_k=2) == [0, 1]
    assert kept(torch.zeros(4), min_p=1.0) == [0, 1, 2, 3]  # all are as probable as the most probable


def test_min_p_is_a_share_of_the_most_probable() -> None:
    assert kept(DYADIC, min_p=0.5) == [0, 1]
    assert kept(DYADIC, min_p=0.25) == [0, 1, 2, 3]
    assert kept(DYADIC, min_p=0.2500001) == [0, 1]


def test_what_is_left_is_renormalised_before_the_next_filter() -> None:
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64).log()
    # Of three that are left, 4/9 and 3/9 are 0.78 of the mass; of all four, 0.7.
    assert kept(logits, top_k=3, top_p=0.75) == [0, 1]
    assert kept(logits, top_p=0.75) == [0, 1, 2]
    probs = Sampling(top_k=3, top_p=0.75).log_probs(logits).exp()
    assert_close(probs, torch.tensor([4 / 7, 3 / 7, 0, 0], dtype=torch.float64))
    # Temperature comes first: at 1/2 the masses are as 16, 9, 4 and 1.
    assert kept(logits, temperature=0.5, top_p=0.8) == [0, 1]
    # min_p looks at the most probable one, whatever was cut.
    assert kept(logits, top_k=2, min_p=0.74) == [0, 1]
    assert kept(logits, top_k=2, min_p=0.76) == [0]


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("top_k", [None, 1, 5, 20])
@pytest.mark.parametrize("top_p", [None, 0.1, 0.6, 0.95])
@pytest.mark.parametrize("min_p", [None, 0.02, 0.4])
def test_the_filters_are_those_of_transformers(
    temperature: float, top_k: int | None, top_p: float | None, min_p: float | None
) -> None:
    logits = 3 * torch.randn(31, 17, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    outside = LogitsProcessorList([TemperatureLogitsWarper(temperature)])
    if top_k is not None:
        outside.append(TopKLogitsWarper(top_k))
    if top_p is not None:
        outside.append(TopPLogitsWarper(top_p))
    if min_p is not None:
        outside.append(MinPLogitsWarper(min_p))
    expected = outside(torch.zeros(31, 1, dtype=torch.long), logits.clone()).log_softmax(-1)
    ours = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p).log_probs(logits)
    assert_close(ours, expected, rtol=1e-12, atol=1e-12)


def test_what_is_drawn_has_the_filtered_frequencies() -> None:
    log_probs = Sampling(top_k=3).log_probs(torch.cat([torch.tensor([-torch.inf] * 2), DYADIC.float()]))
    assert log_probs.isfinite().tolist() == [False, False, True, True, True, False]
    n = 1_000_000
    uniforms = torch.rand(n, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    counts = draw(log_probs.expand(n, -1), uniforms).bincount(minlength=6).tolist()
    for count, share in zip(counts, [0, 0, 4 / 7, 2 / 7, 1 / 7, 0], strict=True):
        assert abs(count - n * share) <= 5 * math.sqrt(n * share * (1 - share))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"temperature": -0.1}, "temperature=-0.1: must be 0"),
        ({"temperature": math.nan}, "temperature=nan"),
        ({"temperature": math.inf}, "temperature=inf"),
        ({"top_k": 0}, "top_k=0: must be at least 1"),
        ({"top_p": 0.0}, "top_p=0.0: must be above 0 and at most 1"),
        ({"top_p": 1.1}, "top_p=1.1"),
        ({"top_p": math.nan}, "top_p=nan"),
        ({"min_p": -0.1}, "min_p=-0.1: must be from 0 to 1"),
        ({"min_p": 1.5}, "min_p=1.5"),
        ({"min_p": math.nan}, "min_p=nan"),
    ],
)
def test_values_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sampling(**options)


@pytest.mark.parametrize("options", [{}, {"temperature": 0}, {"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.5}])
def test_logits_that_are_not_a_number_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not a number"):
        Sampling(**options).log_probs(torch.tensor([0.0, math.nan, 1.0]))
