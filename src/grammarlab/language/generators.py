"""Grammars whose set of rules depends on numbers: each generator writes one in the notation of `grammar`.

The start symbol is S. The same arguments give the same text in every process.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np

_MOST = 1_000  # of anything: larger grammars than anyone has waited for

_BRACKETS = ("()", "[]", "{}", "<>")


def dyck(k: int, p: float) -> str:
    """Balanced words over `k` kinds of brackets: S is a bracketed S and one more S with probability `p`, else empty.

    The kinds share `p` evenly. The fifth kind is written (5 and )5, and so on.
    """
    k = _whole("k", k, 1, _MOST)
    p = _probability("p", p)
    kinds = [tuple(_BRACKETS[i]) if i < len(_BRACKETS) else (f"({i + 1}", f"){i + 1}") for i in range(k)]
    options = [f"'{opening}' S '{closing}' S [{p / k!r}]" for opening, closing in kinds]
    return f"S -> {' | '.join([*options, f'[{1 - p!r}]'])}\n"


def random_grammar(levels: int, symbols: int, rules: int, words: int, seed: int) -> str:
    """A random grammar of `levels` levels: S at the top, then `symbols` nonterminals a level, `words` words below.

    L1_1, L1_2, … are the lowest level, whose right sides are words. Each nonterminal has `rules` different right
    sides, equally likely, each of 2 or 3 symbols of the level below. Every symbol and every word is used.
    """
    levels = _whole("levels", levels, 1, _MOST)
    symbols = _whole("symbols", symbols, 1, _MOST)
    rules = _whole("rules", rules, 1)
    words = _whole("words", words, 1, _MOST)
    rng = np.random.default_rng(_whole("seed", seed, 0))
    alphabet = [f"'{word}'" for word in range(1, words + 1)]
    middle = [[f"L{level}_{i}" for i in range(1, symbols + 1)] for level in range(1, levels)]
    layers = [alphabet, *middle, ["S"]]  # from the bottom
    for below, above in pairwise(layers):
        size, name = (words, "words") if below is alphabet else (symbols, "symbols")
        _refuse_if(
            rules > size**2 + size**3,
            "rules",
            rules,
            f"must be at most {size**2 + size**3}, the number of right sides over {name}={size}",
        )
        most = 3 * rules * len(above)
        _refuse_if(size > most, name, size, f"must be at most {most}, the places for them in the level above")
    lines: list[str] = []
    for below, above in reversed(list(pairwise(layers))):
        for left, group in zip(above, _right_sides(len(below), len(above), rules, rng), strict=True):
            lines.append(f"{left} -> {' | '.join(' '.join(below[i] for i in right) for right in group)}")
    return "\n".join(lines) + "\n"


def _right_sides(size: int, lefts: int, rules: int, rng: np.random.Generator) -> list[list[list[int]]]:
    """For each of `lefts` symbols `rules` different right sides over range(size), together using all of it."""
    groups = [_distinct(size, rules, rng) for _ in range(lefts)]
    rights = [right for group in groups for right in group]
    count = [0] * size
    for right in rights:
        for child in right:
            count[child] += 1
    # A right side that takes in an unused symbol differs from all others, for none of them holds it.
    for unused in [child for child in range(size) if not count[child]]:
        places = [(right, i) for right in rights for i, child in enumerate(right) if count[child] > 1]
        if places:
            right, i = places[int(rng.integers(len(places)))]
            count[right[i]] -= 1
            right[i] = unused
        else:
            short = [right for right in rights if len(right) == 2]
            right = short[int(rng.integers(len(short)))]
            right.insert(int(rng.integers(3)), unused)
        count[unused] += 1
    return groups


def _distinct(size: int, rules: int, rng: np.random.Generator) -> list[list[int]]:
    """Different right sides, in the order drawn: 2 or 3 symbols equally likely while both lengths have any left."""
    drawn: dict[tuple[int, ...], None] = {}
    left = {2: size**2, 3: size**3}
    while len(drawn) < rules:
        lengths = [length for length in left if left[length]]
        length = lengths[int(rng.integers(len(lengths)))]
        while (right := tuple(int(i) for i in rng.integers(size, size=length))) in drawn:
            pass
        drawn[right] = None
        left[length] -= 1
    return [list(right) for right in drawn]


def _whole(name: str, value: float, minimum: int, maximum: float = math.inf) -> int:
    """`value` as an int; a configuration may give 3 as 3.0."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or (isinstance(value, float) and not value.is_integer()):
        raise ValueError(_message(name, value, "must be a whole number"))
    _refuse_if(value < minimum, name, int(value), f"must be at least {minimum}")
    _refuse_if(value > maximum, name, int(value), f"must be at most {maximum:g}")
    return int(value)


def _probability(name: str, value: float) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError(_message(name, value, "must be a number"))
    _refuse_if(not 0 <= value <= 1, name, value, "must be between 0 and 1")  # NaN is refused too
    return float(value)


def _refuse_if(wrong: bool, name: str, value: object, rule: str) -> None:
    if wrong:
        raise ValueError(_message(name, value, rule))


def _message(name: str, value: object, rule: str) -> str:
    return f"language.parameters.{name}={value}: {rule}"


GENERATORS: dict[str, Callable[..., str]] = {"dyck": dyck, "random": random_grammar}
