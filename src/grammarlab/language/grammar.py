"""Grammar files: the notation, and every fault of a grammar named before anything is built on it.

The notation is that of `nltk.PCFG.fromstring`, one left side a line, widened and made stricter:

    S -> 'a' S 'b' [1/3] | X [2/3]      # a comment
    X -> "c" | "d"                      # no probabilities: uniform over the alternatives of X
    Y ->                                # an empty right side derives the empty sentence

Terminals stand in quotes. A probability is a decimal, `1e-3`, an exact fraction such as `1/3`, or an expression of
named parameters such as `p`, `1-p` or `(1-p)/2`. A left side may have several lines; a line that ends in a backslash
goes on in the next.
"""

from __future__ import annotations

import ast
import math
import operator
import re
import warnings
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

PAD, BEGIN, END = "<pad>", "<begin>", "<end>"
SPECIAL_TOKENS = (PAD, BEGIN, END)

# How far from 1 the probabilities of a left side may sum. It leaves room for 0.333333 three times; nltk's 0.01 would
# put every later number off by up to a percent.
SUM_TOLERANCE = 1e-6

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<arrow>->|→)
    | (?P<bar>\|)
    | \[(?P<probability>[^\]]*)\]
    | "(?P<double>[^"]*)"
    | '(?P<single>[^']*)'
    | (?P<name>[^\s'"|\[\]\#]+?(?=->|→|[\s'"|\[\]\#]|$))
    )""",
    re.VERBOSE,
)


# A line up to its comment; a # inside quotes is part of a word. What follows an unclosed quote is kept, to be named.
_CODE = re.compile(r"""(?:[^'"#]|'[^']*'|"[^"]*"|['"].*)*""")


class GrammarError(ValueError):
    """A grammar that does not say what its author can have meant. `faults`: every one that was found, a line each."""

    def __init__(self, *faults: str) -> None:
        more = f" (and {len(faults) - 1} more: src/language.py lists them)" if len(faults) > 1 else ""
        super().__init__(faults[0] + more)
        self.faults = faults


class GrammarWarning(UserWarning):
    """A grammar that is usable but probably not as meant."""


@dataclass(frozen=True, slots=True)
class Nonterminal:
    """A symbol that is rewritten. Terminals are plain strings."""

    name: str

    def __str__(self) -> str:
        return self.name


Symbol = Nonterminal | str


@dataclass(frozen=True, slots=True)
class Rule:
    """`left -> right`, taken with `probability` whenever `left` is rewritten."""

    left: Nonterminal
    right: tuple[Symbol, ...]
    probability: float

    def __str__(self) -> str:
        return f"{self.left} -> {' '.join(repr(s) if isinstance(s, str) else s.name for s in self.right)}"


class Grammar:
    """A checked probabilistic context-free grammar: every symbol defined and productive, every sum 1.

    `rules` maps each reachable nonterminal to its rules of positive probability, `terminals` lists the words in the
    order of their first use from `start`.

    Raises `GrammarError` for what makes the grammar meaningless, warns with `GrammarWarning` of unreachable symbols.
    """

    def __init__(self, rules: Sequence[Rule], start: str) -> None:
        if not rules:
            raise GrammarError("the grammar has no rules")
        by_left: dict[Nonterminal, list[Rule]] = {}
        for rule in rules:
            by_left.setdefault(rule.left, []).append(rule)
        self.start = Nonterminal(start)
        if self.start not in by_left:
            known = ", ".join(symbol.name for symbol in by_left)
            raise GrammarError(f"start symbol {start!r} has no rule; the grammar defines {known}")
        faults = [fault for left, group in by_left.items() for fault in _faults(left, group, by_left)]
        if faults:
            raise GrammarError(*faults)

        # A rule of probability 0 is never used: what only it reaches is unreachable.
        possible = {left: [rule for rule in group if rule.probability > 0] for left, group in by_left.items()}
        reachable, terminals = _reach(possible, self.start)
        if unreachable := [symbol.name for symbol in by_left if symbol not in reachable]:
            warnings.warn(f"unreachable from {start}: {', '.join(unreachable)}", GrammarWarning, stacklevel=2)
        productive = _productive(possible)
        if unproductive := [symbol.name for symbol in reachable if symbol not in productive]:
            raise GrammarError(
                f"unproductive symbol {', '.join(unproductive)}: no sentence can be derived from it, so its "
                "probability would be lost"
            )
        # Sums within the tolerance are rounding of the notation: divide it out, so that mass 1 is exact.
        self.rules: dict[Nonterminal, tuple[Rule, ...]] = {
            left: tuple(
                Rule(left, rule.right, rule.probability / sum(r.probability for r in possible[left]))
                for rule in possible[left]
            )
            for left in reachable
        }
        self.terminals: tuple[str, ...] = tuple(terminals)


def _faults(left: Nonterminal, group: list[Rule], defined: Container[Nonterminal]) -> Iterator[str]:
    """What is wrong with the rules of one symbol."""
    seen: set[tuple[Symbol, ...]] = set()
    for rule in group:
        if rule.right in seen:
            yield f"duplicate rule `{rule}`: add up the probabilities in one rule"
        seen.add(rule.right)
        if not 0 <= rule.probability <= 1:  # also refuses NaN
            yield f"probability {rule.probability:g} of `{rule}` is not between 0 and 1"
        for symbol in dict.fromkeys(rule.right):
            if isinstance(symbol, str):
                yield from _terminal_faults(symbol, rule)
            elif symbol not in defined:
                yield f"undefined symbol {symbol} in `{rule}`: give it a rule, or quote it if it is a word"
    total = sum(rule.probability for rule in group)
    if not abs(total - 1) <= SUM_TOLERANCE + 1e-12:  # so that 0.333333 three times passes, whose gap rounds to more
        yield f"the probabilities of {left} sum to {total:.10g}, not to 1 (within {SUM_TOLERANCE:g})"


def _terminal_faults(word: str, rule: Rule) -> Iterator[str]:
    if word == "":
        yield f"empty terminal '' in `{rule}`: leave the right side empty to derive nothing"
    elif word.split() != [word]:
        yield f"terminal {word!r} in `{rule}` holds white space: sentences are split into words at it"
    elif word in SPECIAL_TOKENS:
        yield f"terminal {word!r} in `{rule}` is reserved for the token of that name"


def _reach(rules: dict[Nonterminal, list[Rule]], start: Nonterminal) -> tuple[list[Nonterminal], list[str]]:
    """Nonterminals and terminals in the order in which a depth-first walk from `start` meets them."""
    nonterminals: dict[Nonterminal, None] = {}
    terminals: dict[str, None] = {}
    stack: list[Symbol] = [start]
    while stack:
        symbol = stack.pop()
        if isinstance(symbol, str):
            terminals[symbol] = None
        elif symbol not in nonterminals:
            nonterminals[symbol] = None
            stack.extend(child for rule in reversed(rules[symbol]) for child in reversed(rule.right))
    return list(nonterminals), list(terminals)


def _productive(rules: dict[Nonterminal, list[Rule]]) -> set[Nonterminal]:
    """Nonterminals from which some sentence can be derived: the least fixed point."""
    productive: set[Nonterminal] = set()
    while True:
        new = {
            left
            for left, group in rules.items()
            if left not in productive
            and any(all(isinstance(s, str) or s in productive for s in rule.right) for rule in group)
        }
        if not new:
            return productive
        productive |= new


def parse_grammar(text: str, start: str, parameters: Mapping[str, float] | None = None) -> Grammar:
    """Read a grammar from its notation. `parameters`: the values of those that its probabilities name.

    Raises `GrammarError` with the line number where the notation is wrong, and for every fault that `Grammar` names.
    """
    rules: list[Rule] = []
    stated: dict[Nonterminal, bool] = {}
    alternatives: dict[Nonterminal, list[tuple[Symbol, ...]]] = {}
    for name, value in (parameters or {}).items():
        if not math.isfinite(value):
            raise GrammarError(f"parameter {name}={value}: must be a finite number")
    values = {name: Fraction(repr(float(value))) for name, value in (parameters or {}).items()}
    used: set[str] = set()
    faults: list[str] = []
    for number, line in _logical_lines(text):
        try:
            left, options = _parse_line(line, number, values, used)
        except GrammarError as error:  # go on: all faults of a file are found at once
            faults += error.faults
            continue
        for right, probability in options:
            if stated.setdefault(left, probability is not None) != (probability is not None):
                faults.append(f"line {number}: {left} has alternatives with and without a probability")
                break
            alternatives.setdefault(left, []).append(right)
            rules.append(Rule(left, right, -1.0 if probability is None else probability))
    if faults:
        raise GrammarError(*faults)
    if unused := sorted(values.keys() - used):
        raise GrammarError(*(f"no probability names the parameter {name}" for name in unused))
    uniform = {left for left, has_probability in stated.items() if not has_probability}
    return Grammar(
        [Rule(r.left, r.right, 1 / len(alternatives[r.left])) if r.left in uniform else r for r in rules],
        start,
    )


def _logical_lines(text: str) -> list[tuple[int, str]]:
    lines: list[tuple[int, str]] = []
    pending, first = "", 1
    for number, raw in enumerate(text.splitlines(), start=1):
        if not pending:
            first = number
        pending += _CODE.match(raw)[0].rstrip()  # type: ignore[index]  # it matches the empty string
        if pending.endswith("\\"):
            pending = pending[:-1] + " "
            continue
        if pending.strip():
            lines.append((first, pending))
        pending = ""
    if pending.strip():
        raise GrammarError(f"line {first}: the last line ends in a backslash")
    return lines


def _parse_line(
    line: str, number: int, values: Mapping[str, Fraction], used: set[str]
) -> tuple[Nonterminal, list[tuple[tuple[Symbol, ...], float | None]]]:
    tokens = _tokenise(line, number)
    if len(tokens) < 2 or tokens[0][0] != "name" or tokens[1][0] != "arrow":
        raise GrammarError(f"line {number}: expected `Left -> right side`, found {line.strip()!r}")
    left = Nonterminal(tokens[0][1])
    options: list[tuple[tuple[Symbol, ...], float | None]] = []
    right: list[Symbol] = []
    probability: float | None = None
    for kind, value in [*tokens[2:], ("bar", "|")]:
        if kind == "bar":
            options.append((tuple(right), probability))
            right, probability = [], None
        elif kind == "arrow":
            raise GrammarError(f"line {number}: a second arrow; one left side a line")
        elif probability is not None:
            raise GrammarError(f"line {number}: {value!r} after a probability; is a | missing?")
        elif kind == "probability":
            probability = _parse_probability(value, number, values, used)
        else:
            right.append(Nonterminal(value) if kind == "name" else value)
    return left, options


def _tokenise(line: str, number: int) -> list[tuple[str, str]]:
    tokens: list[tuple[str, str]] = []
    position = 0
    end = len(line.rstrip())
    while position < end:
        match = _TOKEN.match(line, position)
        if match is None:
            rest = line[position:].strip()
            raise GrammarError(f"line {number}: cannot read {rest!r}; is a quote or a bracket not closed?")
        kind = match.lastgroup or ""
        tokens.append(("terminal" if kind in ("single", "double") else kind, match[kind]))
        position = match.end()
    return tokens


def _parse_probability(text: str, number: int, values: Mapping[str, Fraction], used: set[str]) -> float:
    try:
        if len(text) > 60 or re.search(r"[eE][+-]?\d{4}", text):
            raise ValueError  # no probability, and an exact fraction of it could take forever
        exact = _evaluate(text.strip(), ast.parse(text.strip(), mode="eval").body, values, used)
        if exact > 0 and float(exact) == 0:
            raise ValueError
        return float(exact)
    except KeyError as error:
        known = f"parameters are {', '.join(values)}" if values else "there are no parameters"
        raise GrammarError(
            f"line {number}: [{text}] is no probability; write 0.25, 1e-3 or 1/4 ({error.args[0]}: {known})"
        ) from None
    except (ValueError, SyntaxError, ZeroDivisionError, OverflowError):
        raise GrammarError(f"line {number}: [{text}] is no probability; write 0.25, 1e-3 or 1/4") from None


def _evaluate(text: str, node: ast.expr, values: Mapping[str, Fraction], used: set[str]) -> Fraction:
    """An expression of numbers and parameters, exactly. Raises `KeyError` for an unknown one."""
    match node:
        case ast.Constant(value=int() | float()):
            written = Fraction(ast.get_source_segment(text, node) or "")  # 0.1 is a tenth
            if written > 0 and float(written) == 0:
                raise ValueError
            return written
        case ast.Name(id=name):
            used.add(name)
            return values[name]
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=operand):
            return _evaluate(text, operand, values, used) * (-1 if isinstance(sign, ast.USub) else 1)
        case ast.BinOp(op=ast.Add() | ast.Sub() | ast.Mult() | ast.Div() as sign, left=left, right=right):
            sides = (_evaluate(text, side, values, used) for side in (left, right))
            return _OPERATIONS[type(sign)](*sides)
    raise ValueError


_OPERATIONS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
