"""All sentences of a finite language, with their probabilities: from the shortest parts up."""

from __future__ import annotations

import math

from grammarlab.language.grammar import Grammar, Nonterminal
from grammarlab.language.normal_form import COMPLETE, NUMBERS, NormalForm, normal_form
from grammarlab.language.protocol import Sentence

Yields = dict[tuple[int, ...], float]  # sentences as word indices, with probabilities


def written_out(grammar: Grammar, length: int) -> dict[Sentence, float]:
    """Every sentence of at most `length` words with its probability, summed over its derivations."""
    form: NormalForm[float] = normal_form(grammar, float, NUMBERS)  # type: ignore[arg-type]  # real stays real
    n_symbols = form.n_symbols
    most = _usable_lengths(grammar, length)
    uppers: dict[int, list[tuple[int, float]]] = {}
    for (upper, lower), weight in form.units.items():
        uppers.setdefault(lower, []).append((upper, weight))
    by_left: list[list[tuple[int, int, float]]] = [[] for _ in range(n_symbols)]
    for left, first, target, weight in form.corners:
        by_left[left].append((first, target, weight))
    yields: list[list[Yields]] = [[{} for _ in range(length + 1)] for _ in range(n_symbols)]
    rests: dict[tuple[int, int], Yields] = {}

    def first_yields(symbol: int, n: int) -> Yields:
        if symbol < n_symbols:
            return yields[symbol][n]
        return {(symbol - n_symbols,): 1.0} if n == 1 else {}

    def parts(state: int, n: int) -> range:
        """Lengths that the first symbol of a rest of n words may have."""
        return range(1, n + 1 if form.waits[state] < n_symbols else min(n, 1) + 1)

    def rest(state: int, n: int) -> Yields:
        """The yields of n words of what is to come in a state."""
        stack = [(state, n)]  # a rule may be longer than Python's own stack
        while stack:
            here, m = stack[-1]
            if here == COMPLETE:
                rests[here, m] = {(): 1.0} if m == 0 else {}
            terms = [
                (firsts, target, m - part, weight)
                for part in (parts(here, m) if (here, m) not in rests else ())
                if (firsts := first_yields(form.waits[here], part))
                for target, weight in form.advances[here]
            ]
            missing = [(target, left) for _, target, left, _ in terms if (target, left) not in rests]
            if missing:
                stack += missing
                continue
            if (here, m) not in rests:
                found: Yields = {}
                for firsts, target, left, weight in terms:
                    _join(found, firsts, rests[target, left], weight)
                rests[here, m] = found
            stack.pop()
        return rests[state, n]

    for n in range(1, length + 1):
        for left in range(n_symbols):
            if n > most[left]:
                continue
            found: Yields = {}
            for first, target, weight in by_left[left]:
                last = n if target == COMPLETE else n - 1
                for part in range(1, (last if first < n_symbols else min(last, 1)) + 1):
                    if firsts := first_yields(first, part):
                        _join(found, firsts, rest(target, n - part), weight)
            for upper, weight in uppers[left]:
                _join(yields[upper][n], found, {(): 1.0}, weight)
    sentences: Yields = {(): form.empty[form.start]} if form.start in form.empty else {}
    for group in yields[form.start]:
        sentences |= group
    return {tuple(grammar.terminals[i] for i in words): probability for words, probability in sentences.items()}


def _join(into: Yields, lefts: Yields, rights: Yields, weight: float) -> None:
    """Add each left followed by each right."""
    for left, first in lefts.items():
        for right, second in rights.items():
            into[left + right] = into.get(left + right, 0.0) + weight * first * second


def _usable_lengths(grammar: Grammar, length: int) -> list[int]:
    """Up to which length a yield of each nonterminal has a place in a sentence: what is around it has words too."""
    shortest: dict[Nonterminal | str, float] = {word: 1 for word in grammar.terminals}
    around: dict[Nonterminal, float] = {grammar.start: 0}
    changed = True
    while changed:
        changed = False
        for left, rules in grammar.rules.items():
            least = min(sum(shortest.get(symbol, math.inf) for symbol in rule.right) for rule in rules)
            if least < shortest.get(left, math.inf):
                shortest[left], changed = least, True
    changed = True
    while changed:
        changed = False
        for left, rules in grammar.rules.items():
            for rule in rules if left in around else ():
                total = around[left] + sum(shortest[symbol] for symbol in rule.right)
                for symbol in rule.right:
                    if isinstance(symbol, Nonterminal) and total - shortest[symbol] < around.get(symbol, math.inf):
                        around[symbol], changed = total - shortest[symbol], True
    return [int(length - around[left]) for left in grammar.rules]
