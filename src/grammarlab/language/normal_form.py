"""A grammar without empty and unit rules that derives the same sentences, each with the sum over all its derivations.

Rules are not cut in pairs. A state (X, rest) says that a part of a rule of X has been read and `rest` is to come, its
first symbol with a yield that is not empty; what comes between may have been empty. So the form is at most quadratic
in the length of a rule. What the empty and unit derivations weigh is summed in closed form (Stolcke 1995, section 4.5),
in any semiring: probabilities, the best derivation, the number of derivations.

Axes: N nonterminals, V words, in the order of the grammar. A symbol is an index: nonterminals from 0, words from N.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from grammarlab.language.grammar import Grammar, Nonterminal, Rule

W = TypeVar("W")
Matrix = dict[tuple[int, int], W]  # what is absent is zero

COMPLETE = -1  # a target: no more of the rule is to come


class Equation(NamedTuple, Generic[W]):
    """A rule: symbol `left` is `weight` times the product of the symbols `right`."""

    left: int
    weight: W
    right: tuple[int, ...]


class Semiring(Protocol[W]):
    """How weights of alternatives are added and weights of parts multiplied."""

    @property
    def one(self) -> W: ...

    @property
    def probabilities(self) -> bool:
        """Whether the weights of all derivations from a symbol sum to 1."""

    @property
    def add(self) -> Callable[[W, W], W]: ...

    @property
    def mul(self) -> Callable[[W, W], W]: ...

    def solve(self, equations: Sequence[Equation[W]]) -> dict[int, W]:
        """The least solution of x_left = Σ weight · Π x_right; zeros are left out."""

    def closure(self, matrix: Matrix[W], n: int) -> Matrix[W]:
        """1 + M + M² + …"""


class Numbers:
    """Real or complex weights with sum and product.

    `solve` is Newton's method from 0 (Etessami and Yannakakis 2009), which is monotone; complex weights, whose
    imaginary parts carry a derivative (see `sums.py`), are solved from the real solution.
    """

    one: complex = 1.0
    probabilities = True

    def add(self, a: complex, b: complex) -> complex:
        return a + b

    def mul(self, a: complex, b: complex) -> complex:
        return a * b

    def solve(self, equations: Sequence[Equation[complex]]) -> dict[int, complex]:
        index = {left: i for i, left in enumerate(dict.fromkeys(equation.left for equation in equations))}
        solved = np.zeros(len(index))
        rows = [(index[e.left], e.weight, [index[child] for child in e.right]) for e in equations]
        real = [(left, complex(weight).real, right) for left, weight, right in rows]
        for _ in range(200):
            try:
                step = _newton_step(real, solved)
            except np.linalg.LinAlgError:
                break  # a double root, reached: symbols that derive nothing but the empty sentence, critically
            if not np.any(np.abs(step) > 1e-16 * solved):
                break
            solved = np.minimum(solved + step, 1.0)
        if any(isinstance(weight, complex) for _, weight, _ in rows):
            solved = solved.astype(complex)
            for _ in range(3):  # the derivative is exact after two
                solved = solved + _newton_step(rows, solved)
        return {left: solved[i].item() for left, i in index.items()}

    def closure(self, matrix: Matrix[complex], n: int) -> Matrix[complex]:
        dense = np.eye(n, dtype=complex if any(isinstance(w, complex) for w in matrix.values()) else float)
        for (row, column), weight in matrix.items():
            dense[row, column] -= weight
        inverse = np.linalg.inv(dense)
        reached = _reached(matrix, n)
        return {(row, column): inverse[row, column].item() for row, column in zip(*np.nonzero(reached), strict=True)}


def _newton_step(equations: Sequence[tuple[int, complex, list[int]]], x: np.ndarray) -> np.ndarray:
    """(N,) the step of Newton's method at x for x = f(x)."""
    value = np.zeros_like(x)
    jacobian = np.zeros((len(x), len(x)), dtype=x.dtype)
    for left, weight, right in equations:
        value[left] += weight * math.prod(x[right].tolist())
        for i, child in enumerate(right):
            jacobian[left, child] += weight * math.prod(x[right[:i] + right[i + 1 :]].tolist())
    return np.linalg.solve(np.eye(len(x)) - jacobian, value - x)


def _reached(matrix: Mapping[tuple[int, int], object], n: int) -> np.ndarray:
    """(n, n) whether a path leads from the row to the column, the empty one included."""
    reached = np.eye(n, dtype=bool)
    for row, column in matrix:
        reached[row, column] = True
    for middle in range(n):
        reached |= np.outer(reached[:, middle], reached[middle])
    return reached


@dataclass(frozen=True, slots=True)
class Discrete(Generic[W]):
    """Weights whose sums settle after as many rounds as there are symbols, or grow for ever.

    What still grows then is `endless`: on its way is a cycle.
    """

    one: W
    zero: W
    endless: W
    add: Callable[[W, W], W]
    mul: Callable[[W, W], W]
    probabilities: bool = False

    def solve(self, equations: Sequence[Equation[W]]) -> dict[int, W]:
        by_left: dict[int, list[Equation[W]]] = {}
        for equation in equations:
            by_left.setdefault(equation.left, []).append(equation)
        order = list(reversed(by_left.items()))  # parts are mostly written below the whole: from the last up
        values: dict[int, W] = {}
        for round_ in range(2 * len(order) + 2):
            settled = True
            for left, group in order:
                possible = [e for e in group if all(child in values for child in e.right)]
                if not possible:
                    continue
                total = self.zero
                for _, weight, right in possible:
                    for child in right:
                        weight = self.mul(weight, values[child])
                    total = self.add(total, weight)
                if values.get(left) != total:
                    settled = False
                    values[left] = total if round_ <= len(order) else self.endless
            if settled:
                break
        return values

    def closure(self, matrix: Matrix[W], n: int) -> Matrix[W]:
        """Column by column it is such a system: C[row, to] = [row = to] + Σ M[row, middle] C[middle, to]."""
        equations = [Equation(row, weight, (column,)) for (row, column), weight in matrix.items()]
        return {
            (row, to): value
            for to in range(n)
            for row, value in self.solve([*equations, Equation(to, self.one, ())]).items()
        }


def _times(a: float, b: float) -> float:
    return math.inf if math.inf in (a, b) else a * b  # a whole number may be too large for a float


NUMBERS = Numbers()
COUNTS: Discrete[float] = Discrete(1, 0, math.inf, lambda a, b: a + b, _times)  # of derivations, whole and exact
ONE_OR_MORE: Discrete[float] = Discrete(1, 0, 2, lambda a, b: min(a + b, 2), lambda a, b: min(a * b, 2))
BEST: Discrete[float] = Discrete(1.0, 0.0, 1.0, max, lambda a, b: a * b)  # probability of the best derivation


class Corner(NamedTuple, Generic[W]):
    """A rule of `left` whose first symbol that is not empty is `first`; `target`: what is to come then."""

    left: int
    first: int
    target: int
    weight: W


@dataclass(frozen=True, slots=True)
class NormalForm(Generic[W]):
    """See the head of the module. Weights are those of derivations whose yield is not empty, but for `empty`."""

    n_symbols: int
    n_words: int
    start: int
    empty: dict[int, W]  # of deriving the empty sentence
    lefts: list[int]  # of each state: its X
    waits: list[int]  # the first symbol of its rest
    advances: list[list[tuple[int, W]]]  # (target, weight): the states in which it may be once that has been read
    corners: list[Corner[W]]  # without unit rules
    units: Matrix[W]  # (X, Y): of all chains of unit rules from X to Y, the empty one among them


def normal_form(grammar: Grammar, weight: Callable[[float], W], semiring: Semiring[W]) -> NormalForm[W]:
    """`weight`: that of a rule, from its probability."""
    index = symbol_index(grammar)
    n = len(grammar.rules)
    equations = [
        Equation(index[left], weight(rule.probability), tuple(index[symbol] for symbol in rule.right))
        for left, rules in grammar.rules.items()
        for rule in rules
    ]
    empty = semiring.solve(_of(equations, _nullable(equations)))
    filled = _filled(equations, n)
    if semiring.probabilities and all(not isinstance(value, complex) for value in empty.values()):
        # All that they derive is empty, and a derivation ends: exact, where Newton's method may meet a double root.
        empty |= {symbol: semiring.one for symbol in empty if symbol not in filled}

    states: dict[tuple[int, tuple[int, ...]], int] = {}
    waiting: list[tuple[int, tuple[int, ...]]] = []

    def targets(left: int, rest: tuple[int, ...], so_far: W) -> list[tuple[int, W]]:
        """Where one is before `rest`: at each of its symbols that all before it may be empty for, or at its end."""
        found = []
        for i, symbol in enumerate(rest):
            if symbol in filled:
                state = states.setdefault((left, rest[i:]), len(states))
                if state == len(waiting):
                    waiting.append((left, rest[i:]))
                found.append((state, so_far))
            if symbol not in empty:
                return found
            so_far = semiring.mul(so_far, empty[symbol])
        return [*found, (COMPLETE, so_far)]

    units: Matrix[W] = {}
    corners: dict[tuple[int, int, int], W] = {}
    for left, so_far, right in equations:
        for i, first in enumerate(right):
            if first in filled:
                for target, total in targets(left, right[i + 1 :], so_far):
                    unit = target == COMPLETE and first < n
                    place: dict = units if unit else corners  # type: ignore[type-arg]
                    key = (left, first) if unit else (left, first, target)
                    place[key] = semiring.add(place[key], total) if key in place else total
            if first not in empty:
                break
            so_far = semiring.mul(so_far, empty[first])
    advances: list[list[tuple[int, W]]] = []
    while len(advances) < len(waiting):  # states found on the way are appended
        left, rest = waiting[len(advances)]
        advances.append(targets(left, rest[1:], semiring.one))
    return NormalForm(
        n_symbols=n,
        n_words=len(grammar.terminals),
        start=index[grammar.start],
        empty=empty,
        lefts=[left for left, _ in waiting],
        waits=[rest[0] for _, rest in waiting],
        advances=advances,
        corners=[Corner(*key, value) for key, value in corners.items()],
        units=semiring.closure(units, n),
    )


def symbol_index(grammar: Grammar) -> dict[Nonterminal | str, int]:
    nonterminals: list[Nonterminal | str] = list(grammar.rules)
    return {symbol: i for i, symbol in enumerate([*nonterminals, *grammar.terminals])}


def equations_of(grammar: Grammar, weight: Callable[[Rule], W]) -> list[Equation[W]]:
    """The rules, without their words."""
    index = symbol_index(grammar)
    return [
        Equation(
            index[left], weight(rule), tuple(index[symbol] for symbol in rule.right if not isinstance(symbol, str))
        )
        for left, rules in grammar.rules.items()
        for rule in rules
    ]


def longest_yields(grammar: Grammar) -> list[float]:
    """(N,) words of the longest yield of each nonterminal, a whole number of any size, or infinity."""
    return _yields(grammar, Discrete(0, -math.inf, math.inf, max, lambda a, b: a + b))


def shortest_yields(grammar: Grammar) -> list[float]:
    """(N,) the same of the shortest."""
    return _yields(grammar, Discrete(0, math.inf, 0, min, lambda a, b: a + b))


def _yields(grammar: Grammar, semiring: Discrete[float]) -> list[float]:
    words = semiring.solve(equations_of(grammar, lambda rule: sum(isinstance(symbol, str) for symbol in rule.right)))
    return [words[left] for left in range(len(grammar.rules))]


def _of(equations: Sequence[Equation[W]], symbols: set[int]) -> list[Equation[W]]:
    return [e for e in equations if e.left in symbols and symbols.issuperset(e.right)]


def _nullable(equations: Sequence[Equation[W]]) -> set[int]:
    """Symbols that derive the empty sentence."""
    return _least(lambda known: {e.left for e in equations if known.issuperset(e.right)})


def _filled(equations: Sequence[Equation[W]], n: int) -> set[int]:
    """Symbols, words among them, that derive a sentence that is not empty. All symbols derive something."""
    words = {symbol for e in equations for symbol in e.right if symbol >= n}
    return _least(lambda known: words | {e.left for e in equations if not known.isdisjoint(e.right)})


def _least(step: Callable[[set[int]], set[int]]) -> set[int]:
    known: set[int] = set()
    while (new := known | step(known)) != known:
        known = new
    return known
