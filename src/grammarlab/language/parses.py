"""Derivations of one sentence under the rules as written: the most probable tree, and how many trees there are.

Empty rules, unit rules and cycles of them are kept. A node (X, i, j) says that X derives words i+1..j. The chart holds
the nodes whose rule has no child over the same words; what stands above such a node over the same words is a chain of
unit steps: rules all of whose symbols but one derive nothing.
"""

from __future__ import annotations

import heapq
import math
import operator
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from grammarlab.language.engine import Engine
from grammarlab.language.grammar import Grammar, Nonterminal, Rule, Symbol
from grammarlab.language.normal_form import COMPLETE, COUNTS, Discrete, Equation, NormalForm, normal_form, symbol_index
from grammarlab.language.protocol import Sentence, as_sentence


@dataclass(frozen=True, slots=True)
class Tree:
    """A nonterminal and what its rule put in its place: trees and words."""

    label: str
    children: tuple[Tree | str, ...]

    def __str__(self) -> str:
        """Brackets as nltk writes them, on one line: `(S (A a) b)`."""
        parts: list[str] = []
        waiting: list[Tree | str] = [self]
        while waiting:
            part = waiting.pop()
            if isinstance(part, str):
                parts.append(part)
                continue
            parts.append(f"({part.label} ")
            waiting.append(")")
            for i, child in enumerate(reversed(part.children)):
                waiting += [" ", child] if i else [child]
        return "".join(parts)

    def pretty(self) -> str:
        """The tree drawn in lines of text, root at the top, by nltk."""
        from nltk.tree import Tree as Drawn

        trees: list[Any] = []  # built from the leaves up: a tree may be deeper than Python's stack
        waiting: list[tuple[Tree | str, bool]] = [(self, False)]
        while waiting:
            part, opened = waiting.pop()
            if isinstance(part, str):
                trees.append(part)
            elif not opened:
                waiting.append((part, True))
                waiting += [(child, False) for child in reversed(part.children)]
            else:
                cut = len(trees) - len(part.children)
                trees[cut:] = [Drawn(part.label, trees[cut:])]
        return str(trees[0].pformat() if not trees[0].leaves() else "\n".join(_lines(trees[0])))


def _lines(tree: Any) -> list[str]:
    from nltk.tree.prettyprinter import TreePrettyPrinter

    return [line.rstrip() for line in TreePrettyPrinter(tree).text().splitlines()]


@dataclass(frozen=True, slots=True)
class Parse:
    """A derivation of a sentence; `log_prob`: its own probability, not the sentence's, in nats."""

    tree: Tree
    log_prob: float


class _Node(NamedTuple):
    symbol: Nonterminal
    start: int
    end: int
    below: Nonterminal  # where the chain of unit steps ends


_Child = _Node | Tree | str


class _Step(NamedTuple):
    """A unit step: all symbols of the rule but that at `place` derive nothing."""

    rule: Rule
    place: int


# ---- the most probable ----


def best_parse(grammar: Grammar, engine: Engine, sentence: Sentence) -> Parse:
    """The most probable derivation; raises `ValueError` for what is no sentence of the language."""
    sentence = as_sentence(sentence)
    search = _Search(grammar, engine, sentence)
    root = search.root()
    if root is None:
        raise ValueError(f"{' '.join(sentence)!r} is no sentence of the language")
    logs: list[float] = []
    order: list[Tree | str | tuple[str, int]] = []  # from the root down, left to right; a node as (label, children)
    waiting: list[_Child] = [root]
    while waiting:
        child = waiting.pop()
        if isinstance(child, _Node):
            rule, children = search.expand(child)
            logs.append(math.log(rule.probability))
            order.append((child.symbol.name, len(children)))
            waiting.extend(reversed(children))
            continue
        if isinstance(child, Tree):
            logs.append(search.empty[Nonterminal(child.label)][0])
        order.append(child)
    built: list[Tree | str] = []
    for entry in reversed(order):
        built.append(Tree(entry[0], tuple(built.pop() for _ in range(entry[1]))) if isinstance(entry, tuple) else entry)
    tree = built.pop()
    assert isinstance(tree, Tree)
    return Parse(tree, math.fsum(logs))


class _Search:
    """The best log-weights over the spans of a sentence, and the rule behind each."""

    def __init__(self, grammar: Grammar, engine: Engine, sentence: Sentence) -> None:
        self.grammar, self.sentence = grammar, sentence
        self.empty = _best_empty(grammar)
        chains = _best_chains(grammar, {symbol: log for symbol, (log, _) in self.empty.items()})
        self.steps = {(upper, lower): step for lower, uppers in chains.items() for upper, (_, step) in uppers.items()}
        self.below: dict[Nonterminal, list[tuple[Nonterminal, float]]] = defaultdict(list)
        for lower, uppers in chains.items():
            for upper, (log, _) in uppers.items():
                self.below[upper].append((lower, log))
        index = symbol_index(grammar)
        self.index: dict[Nonterminal, int] = {symbol: i for i, symbol in enumerate(grammar.rules)}
        longest = _longest(grammar)
        self.after: dict[Rule, list[tuple[int, float]]] = {  # fewest and most words after each place of a right side
            rule: [
                (sum(int(engine.shortest[index[s]]) for s in rest), sum(longest.get(s, 1.0) for s in rest))
                for rest in (rule.right[r + 1 :] for r in range(len(rule.right)))
            ]
            for rules in grammar.rules.values()
            for rule in rules
        }
        chart = engine.best(sentence)
        starts, symbols, ends = chart.spans.T
        keys = (starts * len(grammar.rules) + symbols) * (len(sentence) + 1) + ends  # as `_key`
        order = np.argsort(keys)
        self.keys, self.values = keys[order], chart.span_value[order]
        self.ends = cache(self._ends)

    def root(self) -> _Node | Tree | None:
        start = self.grammar.start
        if not self.sentence:
            return self.empty[start][1] if start in self.empty else None
        found = self._over(start, 0, len(self.sentence))
        return found and _Node(start, 0, len(self.sentence), found[1])

    def expand(self, node: _Node) -> tuple[Rule, list[_Child]]:
        """The rule of a node and what its symbols become."""
        step = self.steps[node.symbol, node.below]
        if step is None:
            return self._split(node.symbol, node.start, node.end)
        children: list[_Child] = []
        for place, symbol in enumerate(step.rule.right):
            assert isinstance(symbol, Nonterminal)
            here = _Node(symbol, node.start, node.end, node.below)
            children.append(here if place == step.place else self.empty[symbol][1])
        return step.rule, children

    def _split(self, left: Nonterminal, start: int, end: int) -> tuple[Rule, list[_Child]]:
        """The best rule and split without a child over the same words."""
        best: tuple[float, Rule, _Chain] | None = None
        for rule in self.grammar.rules[left]:
            reached: dict[int, tuple[float, _Chain]] = {start: (math.log(rule.probability), None)}
            for r in range(len(rule.right)):
                fewest, most = self.after[rule][r]
                new: dict[int, tuple[float, _Chain]] = {}
                for at, (so_far, chain) in reached.items():
                    for to, log, child in self._next(rule, r, at, end, (end - most, end - fewest)):
                        if isinstance(child, _Node) and (at, to) == (start, end):
                            continue
                        if to not in new or so_far + log > new[to][0]:
                            new[to] = so_far + log, (chain, child)
                reached = new
            if end in reached and (best is None or reached[end][0] > best[0]):
                best = reached[end][0], rule, reached[end][1]
        assert best is not None
        children: list[_Child] = []
        chain = best[2]
        while chain is not None:
            chain, child = chain
            children.append(child)
        return best[1], children[::-1]

    def _next(
        self, rule: Rule, r: int, at: int, end: int, within: tuple[float, int]
    ) -> Iterator[tuple[int, float, _Child]]:
        """Where symbol r of a rule over the words up to `end` may end, `within` these bounds, if it begins at `at`."""
        symbol = rule.right[r]
        final = r == len(rule.right) - 1
        if isinstance(symbol, str):
            if at < within[1] and self.sentence[at] == symbol:
                yield at + 1, 0.0, symbol
            return
        if symbol in self.empty and (at == end or not final):
            yield at, *self.empty[symbol]
        if final:
            if at < end and (found := self._over(symbol, at, end)):
                yield end, found[0], _Node(symbol, at, end, found[1])
            return
        ends = self.ends(symbol, at)
        for to, log, below in ends[bisect_left(ends, within[0], key=_end) : bisect_right(ends, within[1], key=_end)]:
            yield to, log, _Node(symbol, at, to, below)

    def _over(self, symbol: Nonterminal, start: int, end: int) -> tuple[float, Nonterminal] | None:
        """Best log-weight of a symbol over a span, and where its chain of unit steps ends."""
        best = None
        for lower, log in self.below[symbol]:
            key = self._key(start, self.index[lower], end)
            place = int(np.searchsorted(self.keys, key))
            if place < len(self.keys) and self.keys[place] == key:
                total = log + float(self.values[place])
                if best is None or total > best[0]:
                    best = total, lower
        return best

    def _ends(self, symbol: Nonterminal, start: int) -> list[tuple[int, float, Nonterminal]]:
        """The same for each end that there is, in order."""
        best: dict[int, tuple[float, Nonterminal]] = {}
        for lower, log in self.below[symbol]:
            first = self._key(start, self.index[lower], 0)
            part = slice(*np.searchsorted(self.keys, [first, first + len(self.sentence) + 1]).tolist())
            for end, value in zip((self.keys[part] - first).tolist(), self.values[part].tolist(), strict=True):
                if end not in best or log + value > best[end][0]:
                    best[end] = log + value, lower
        return [(end, *best[end]) for end in sorted(best)]

    def _key(self, start: int, symbol: int, end: int) -> int:
        return (start * len(self.index) + symbol) * (len(self.sentence) + 1) + end


_Chain = tuple["_Chain", _Child] | None  # the children so far, the last one outermost


def _end(entry: tuple[int, float, Nonterminal]) -> int:
    return entry[0]


def _longest(grammar: Grammar) -> dict[Symbol, float]:
    """Words of the longest yield of each nonterminal, or infinity."""
    longest: Discrete[float] = Discrete(0.0, -math.inf, math.inf, max, operator.add)
    index = {symbol: i for i, symbol in enumerate(grammar.rules)}
    found = longest.solve(
        [
            Equation(
                index[left],
                float(sum(isinstance(symbol, str) for symbol in rule.right)),
                tuple(index[symbol] for symbol in rule.right if isinstance(symbol, Nonterminal)),
            )
            for left, rules in grammar.rules.items()
            for rule in rules
        ]
    )
    return {symbol: found[i] for symbol, i in index.items()}


def _best_empty(grammar: Grammar) -> dict[Nonterminal, tuple[float, Tree]]:
    """The best derivation of nothing from each symbol that has one, and its log-weight.

    The best that is not settled yet can only be made of settled ones (Knuth 1977), so no symbol comes to stand below
    itself.
    """
    users: dict[Nonterminal, list[Rule]] = defaultdict(list)
    missing: dict[Rule, int] = {}
    found: list[tuple[float, int, Rule]] = []
    for rules in grammar.rules.values():
        for rule in rules:
            symbols = {symbol for symbol in rule.right if isinstance(symbol, Nonterminal)}
            if any(isinstance(symbol, str) for symbol in rule.right):
                continue
            missing[rule] = len(symbols)
            for symbol in symbols:
                users[symbol].append(rule)
            if not symbols:
                found.append((-math.log(rule.probability), len(found), rule))
    heapq.heapify(found)
    n_found = len(found)
    settled: dict[Nonterminal, tuple[float, Tree]] = {}
    while found:
        cost, _, rule = heapq.heappop(found)
        if rule.left in settled:
            continue
        parts = [settled[symbol] for symbol in rule.right if isinstance(symbol, Nonterminal)]
        settled[rule.left] = -cost, Tree(rule.left.name, tuple(tree for _, tree in parts))
        for user in users[rule.left]:
            missing[user] -= 1
            if missing[user] == 0:
                logs = [settled[symbol][0] for symbol in user.right if isinstance(symbol, Nonterminal)]
                heapq.heappush(found, (-math.log(user.probability) - sum(logs), n_found, user))
                n_found += 1
    return settled


def _best_chains(
    grammar: Grammar, empty: dict[Nonterminal, float]
) -> dict[Nonterminal, dict[Nonterminal, tuple[float, _Step | None]]]:
    """[Y][X]: log-weight of the best chain of unit steps from X down to Y, and its first step; None for the empty one.

    Shortest paths (Dijkstra 1959): the steps lead to Y, past no symbol twice.
    """
    above: dict[Nonterminal, list[tuple[Nonterminal, float, _Step]]] = defaultdict(list)
    for left, rules in grammar.rules.items():
        for rule in rules:
            full = [place for place, symbol in enumerate(rule.right) if symbol not in empty]
            for place in full or range(len(rule.right)):
                symbol = rule.right[place]
                if len(full) > 1 or isinstance(symbol, str):
                    break
                rest = (empty[s] for s in rule.right[:place] + rule.right[place + 1 :] if isinstance(s, Nonterminal))
                above[symbol].append((left, math.log(rule.probability) + sum(rest), _Step(rule, place)))
    chains: dict[Nonterminal, dict[Nonterminal, tuple[float, _Step | None]]] = {}
    for lower in grammar.rules:
        settled: dict[Nonterminal, tuple[float, _Step | None]] = {}
        found: list[tuple[float, int, Nonterminal, _Step | None]] = [(0.0, 0, lower, None)]
        n_found = 1
        while found:
            cost, _, symbol, step = heapq.heappop(found)
            if symbol in settled:
                continue
            settled[symbol] = -cost, step
            for upper, log, by in above[symbol]:
                heapq.heappush(found, (cost - log, n_found, upper, by))
                n_found += 1
        chains[lower] = settled
    return chains


# ---- how many ----


def count_parses(grammar: Grammar, engine: Engine, sentence: Sentence) -> float:
    """Number of derivation trees: a whole number of any size, or infinity; 0 for what is no sentence."""
    sentence = as_sentence(sentence)
    form: NormalForm[float] = normal_form(grammar, lambda _: 1, COUNTS)
    if not sentence:
        return form.empty.get(form.start, 0)
    chart = engine.spans(sentence)
    if chart.value == 0:
        return 0
    words = [form.n_symbols + index for index in engine.indices(sentence).tolist()]
    possible: list[set[tuple[int, int]]] = [set() for _ in words]  # by start: (end, symbol)
    for start, symbol, end in chart.spans.tolist():
        possible[start].add((end, symbol))
    above: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for (upper, lower), weight in form.units.items():
        above[lower].append((upper, weight))
    corners: dict[int, list[tuple[int, int, float]]] = defaultdict(list)
    for left, first, target, weight in form.corners:
        corners[first].append((left, target, weight))
    # From the last start to the first: what begins later is known by then.
    whole: list[dict[int, dict[int, float]]] = [{} for _ in words]  # by start, symbol, end: units included
    for start in reversed(range(len(words))):
        whole[start] = _from(start, words, form, possible[start], above, corners, whole)
    return whole[0][form.start][len(words)]


def _from(
    start: int,
    words: Sequence[int],
    form: NormalForm[float],
    possible: set[tuple[int, int]],
    above: dict[int, list[tuple[int, float]]],
    corners: dict[int, list[tuple[int, int, float]]],
    whole: Sequence[dict[int, dict[int, float]]],
) -> dict[int, dict[int, float]]:
    """What begins at `start`: by symbol and end, the number of trees."""
    lefts = {symbol for _, symbol in possible}
    latest = max((end for end, _ in possible), default=start)
    complete: dict[int, dict[int, float]] = defaultdict(dict)  # by end, symbol: without units
    items: dict[int, dict[int, float]] = defaultdict(dict)  # by end, state
    found: dict[int, dict[int, float]] = defaultdict(dict)

    def put(end: int, left: int, target: int, weight: float) -> None:
        if target != COMPLETE:
            if left in lefts and end < latest:
                _add_to(items[end], target, weight)
        elif (end, left) in possible:
            _add_to(complete[end], left, weight)

    for left, target, weight in corners[words[start]]:
        put(start + 1, left, target, weight)
    for end in range(start + 1, latest + 1):
        for symbol, count in complete[end].items():
            for upper, weight in above[symbol]:
                _add_to(found[upper], end, COUNTS.mul(count, weight))
        for symbol, ends in found.items():
            if end in ends:
                for left, target, weight in corners[symbol]:
                    put(end, left, target, COUNTS.mul(ends[end], weight))
        for state, count in items[end].items():
            symbol = form.waits[state]
            if symbol < form.n_symbols:
                following = whole[end].get(symbol, {})
            else:
                following = {end + 1: 1} if words[end] == symbol else {}
            for to, more in following.items():
                for target, weight in form.advances[state]:
                    put(to, form.lefts[state], target, COUNTS.mul(COUNTS.mul(count, more), weight))
    return found


def _add_to(counts: dict[int, float], key: int, count: float) -> None:
    old = counts.get(key, 0)
    counts[key] = math.inf if math.inf in (old, count) else old + count  # a whole number may be too large for a float
