"""Random streams: one for each purpose, so that no draw depends on what else is drawn."""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class Stream(IntEnum):
    """What a random stream is for. Numbers that were given out stay: they are part of what a seed means."""

    train = 0
    order = 1
    validation = 2
    test = 3
    fresh = 4
    generation = 5
    truth = 6


def stream(seed: int, purpose: Stream, *numbers: int) -> np.random.Generator:
    """The stream of a seed for a purpose, and within it for a number such as the epoch."""
    return np.random.default_rng([seed, purpose, *numbers])
