"""Functions of many numbers at a time, compiled."""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]  # of float32 or float64

# Sums may be taken in any order, which is what lets them be vectorised; NaN and infinity keep their meaning.
fast = numba.njit(cache=True, fastmath={"reassoc", "contract", "arcp", "nsz"}, error_model="numpy")

GELU, GELU_TANH, RELU, SWIGLU = range(4)


@fast
def exponentials(x: Array, whole: Array) -> None:
    """e^x in place, of numbers none of which is above 0. `whole`: as many int32 to work with."""
    if x.itemsize == 8:
        for i in range(len(x)):
            x[i] = math.exp(x[i])
        return
    # 2^k e^r with r in ±½ ln 2 by Taylor's polynomial, which is off by less than a float32 can tell; the power is
    # written as its bits. A processor does many of these at a time, and the library's function one.
    powers = whole.view(np.float32)
    for i in range(len(x)):
        y = max(x[i], np.float32(-87))
        k = math.floor(y * np.float32(1.4426950408889634) + np.float32(0.5))
        r = y - k * np.float32(0.693359375) + k * np.float32(2.12194440e-4)  # ln 2 in two parts
        p = np.float32(1 / 5040)
        p = p * r + np.float32(1 / 720)
        p = p * r + np.float32(1 / 120)
        p = p * r + np.float32(1 / 24)
        p = p * r + np.float32(1 / 6)
        p = p * r + np.float32(0.5)
        p = p * r + np.float32(1)
        p = p * r + np.float32(1)
        x[i] = p * (np.float32(0) if x[i] < np.float32(-87) else np.float32(1))
        whole[i] = (np.int32(k) + np.int32(127)) << np.int32(23)
    for i in range(len(x)):
        x[i] *= powers[i]


@fast
def error_function(x: Array) -> None:
    """erf in place."""
    if x.itemsize == 8:
        for i in range(len(x)):
            x[i] = math.erf(x[i])
        return
    # An odd rational function, off by less than 3e-7 everywhere; the coefficients are those of Eigen and XLA. Beyond ±4
    # a float32 has no room between it and ±1.
    for i in range(len(x)):
        y = min(max(x[i], np.float32(-4)), np.float32(4))
        z = y * y
        above = np.float32(-2.72614225801306e-10)
        above = above * z + np.float32(2.77068142495902e-08)
        above = above * z + np.float32(-2.10102402082508e-06)
        above = above * z + np.float32(-5.69250639462346e-05)
        above = above * z + np.float32(-7.34990630326855e-04)
        above = above * z + np.float32(-2.95459980854025e-03)
        above = above * z + np.float32(-1.60960333262415e-02)
        below = np.float32(-1.45660718464996e-05)
        below = below * z + np.float32(-2.13374055278905e-04)
        below = below * z + np.float32(-1.68282697438203e-03)
        below = below * z + np.float32(-7.37332916720468e-03)
        below = below * z + np.float32(-1.42647390514189e-02)
        x[i] = y * above / below


@fast
def likeliest(logits: Array, ids: Array, log_probs: Array) -> None:
    """(B, V) to the first of the largest of each row, (B,), and the natural log of its probability, (B,) in float64."""
    rows, vocabulary = logits.shape
    shifted = np.empty(rows * vocabulary, logits.dtype)
    for row in range(rows):
        best = 0
        for i in range(1, vocabulary):
            if logits[row, i] > logits[row, best]:
                best = i
        for i in range(vocabulary):
            shifted[row * vocabulary + i] = logits[row, i] - logits[row, best]
        ids[row] = best
    exponentials(shifted, np.empty(rows * vocabulary, np.int32))
    for row in range(rows):
        mass = 0.0
        for i in range(vocabulary):
            mass += np.float64(shifted[row * vocabulary + i])
        log_probs[row] = -math.log(mass)


@fast
def activate(up: Array, kind: int, out: Array) -> None:
    """(B, F), with swiglu (B, 2 F), to (B, F)."""
    rows, width = out.shape
    one, half = up.dtype.type(1), up.dtype.type(0.5)
    root_half = up.dtype.type(math.sqrt(0.5))
    outer, inner = up.dtype.type(2 * math.sqrt(2 / math.pi)), up.dtype.type(0.044715)
    whole = np.empty(width, np.int32)
    for row in range(rows):
        x, y = up[row], out[row]
        if kind == GELU:
            for i in range(width):
                y[i] = x[i] * root_half
            error_function(y)
            for i in range(width):
                y[i] = half * x[i] * (one + y[i])
        elif kind == RELU:
            for i in range(width):
                y[i] = x[i] * 0 if x[i] < 0 else x[i]  # NaN stays NaN
        else:
            # Both are x times a sigmoid, σ(z) = 1 / (1 + e^-z): SiLU of x itself, and (1 + tanh u) / 2 = σ(2u).
            for i in range(width):
                z = outer * (x[i] + inner * x[i] * x[i] * x[i]) if kind == GELU_TANH else x[i]
                y[i] = -abs(z)
            exponentials(y, whole)
            for i in range(width):
                y[i] = x[i] * (y[i] if x[i] < 0 else one) / (one + y[i])
            if kind == SWIGLU:
                for i in range(width):
                    y[i] *= x[width + i]
