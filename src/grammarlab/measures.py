"""The names of the measures."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

STEP = "trainer/global_step"  # the name under which Lightning's logger for W&B writes the step
TRAIN = ("train/loss", "train/gradient_norm", "train/learning_rate", "train/tokens_per_second")


def split_measures(stage: str) -> list[str]:
    """Those of the `val` or `test` sentences."""
    return [f"{stage}/{name}" for name in ("loss", "floor", "excess_loss", "leakage")]


def measure_name(kind: str, temperature: float, name: str) -> str:
    """`truth/validity` at temperature 1, `truth/T0_8/validity` at 0.8."""
    if temperature == 1:
        return f"{kind}/{name}"
    written = np.format_float_positional(temperature, trim="0").replace(".", "_")
    return f"{kind}/T{written}/{name}"


def measure_names(temperatures: Sequence[float], *, exact: bool, holdout: bool) -> list[str]:
    """All that an evaluation gives, so that a table can be laid out before the first."""
    distances = ["truth/kl", "truth/total_variation", "truth/legal_mass"]
    names = distances if exact else [name for base in distances for name in (base, f"{base}_stderr")]
    for temperature in sorted({1.0, *temperatures}):
        if exact:
            names += [measure_name("truth", temperature, name) for name in ("validity", "coverage")]
        elif temperature in temperatures:
            names += [measure_name("truth", temperature, name) for name in ("validity", "validity_stderr")]
    if holdout and exact:
        names += ["truth/holdout_mass", "truth/holdout_share"]
    for temperature in temperatures:
        for name in ("validity", "coverage", "distinct") if exact else ("validity", "distinct"):
            names += [measure_name("sampled", temperature, name + bound) for bound in ("", "_low", "_high")]
    return names
