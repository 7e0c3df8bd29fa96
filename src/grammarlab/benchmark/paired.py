"""Two pieces of work timed in turn, so that a busy machine slows both alike."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

_SHORT = 0.1  # seconds that the calls of one measurement take at least
_LONG = 60.0  # seconds that a case may take before it is repeated less often
_LEAST = 3

Pairs = list[tuple[float, float]]


def seconds(work: Callable[[], Any]) -> float:
    """Of one call, after enough of them in a row that a short one is not mostly the waking of a cold processor."""
    start = time.perf_counter()
    calls, now = 0, start
    while calls == 0 or now - start < _SHORT:
        work()
        calls, now = calls + 1, time.perf_counter()
    return (now - start) / calls


def in_turn(ours: Callable[[], float], theirs: Callable[[], float], repeats: int) -> Pairs:
    """The seconds that each says it took, both once unheard before; fewer than `repeats` where they take minutes."""
    once = ours() + theirs()
    return [(ours(), theirs()) for _ in range(max(_LEAST, min(repeats, int(_LONG / once))))]


def summary(case: str, peer: str, pairs: Pairs, *, equal: bool, speed_up: bool = False) -> dict[str, Any]:
    """The ratio is of our seconds to theirs; a speed-up is of theirs to ours."""
    ratios = sorted(theirs / ours if speed_up else ours / theirs for ours, theirs in pairs)
    return {
        "case": case,
        "ours_seconds": median(ours for ours, _ in pairs),
        "peer": peer,
        "peer_seconds": median(theirs for _, theirs in pairs),
        "ratio": median(ratios),
        "spread": [ratios[0], ratios[-1]],
        "repeats": len(pairs),
        "equal": equal,
    }
