"""Intervals of 95 %."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from statistics import NormalDist
from typing import Any

import numpy as np

Z95 = NormalDist().inv_cdf(0.975)


@cache
def t_quantile(degrees: int) -> float:
    """The t with P(|T| ≤ t) = 0.95 for Student's distribution.

    P(|T| > t) = I(ν/2, 1/2; ν / (ν + t²)), the regularised incomplete beta function: Abramowitz and Stegun, 26.7.1.
    """
    import mpmath

    def excess(t: Any) -> Any:
        return mpmath.betainc(degrees / 2, 0.5, 0, degrees / (degrees + t * t), regularized=True) - 0.05

    return float(mpmath.findroot(excess, (1.9, 13.0), solver="anderson"))


def mean_and_half(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean, and half of its interval by Student's t: t₀.₉₇₅(n − 1) · s / √n; None for a single value."""
    n = len(values)
    mean = math.fsum(values) / n
    if n == 1:
        return mean, None
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    return mean, t_quantile(n - 1) * deviation / math.sqrt(n)


def wilson_interval(successes: float, n: int) -> tuple[float, float]:
    """Of a proportion: Wilson, "Probable inference" (1927). It stays inside 0 … 1, also at both ends."""
    z = Z95
    share = successes / n
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    low = 0.0 if successes == 0 else centre - half  # exactly, where rounding would leave a trace
    high = 1.0 if successes == n else centre + half
    return low, high


def bootstrap_interval(values: Sequence[float], *, resamples: int = 20_000, seed: int = 0) -> tuple[float, float]:
    """Of a mean: the middle 95 % of the means of samples drawn from the values with replacement.

    Source: Efron and Tibshirani, "An introduction to the bootstrap" (1993), chapter 13, the percentile interval. It is
    too narrow for few values: by a factor of about √((n − 1) / n), and more in small samples.
    """
    given = np.asarray(values, dtype=np.float64)
    drawn = np.random.default_rng(seed).integers(len(given), size=(resamples, len(given)))
    low, high = np.quantile(given[drawn].mean(1), (0.025, 0.975))
    return float(low), float(high)
