"""Proofs that a grammar is unambiguous: every sentence has exactly one derivation tree.

Ambiguity is undecidable, so there are only criteria that suffice. Two are tried here:

- the grammar is LR(1): D. E. Knuth, "On the translation of languages from left to right", 1965;
- any two rules of a nonterminal derive disjoint languages, and in each rule there is one way to split what it derives
  among its symbols: C. Brabrand, R. Giegerich and A. Møller, "Analyzing ambiguity of context-free grammars", 2010.
  Only cheap signs of the two are looked for: first words, last words and lengths.

Inside this module symbols are integers: the words of the grammar from 0 on, then the nonterminals. Sets of words are
bit masks, in which the bit behind that of the last word stands for the end: that there is no word.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations

from grammarlab.language.grammar import Grammar, Symbol

_LONG = 1 << 60  # stands for this length, any greater one and infinity

_Right = tuple[int, ...]
_Item = tuple[int, int]  # the place of a dot in a rule, and the mask of the words that may follow the rule


def proved_unambiguous(grammar: Grammar, max_states: int = 2_000) -> bool:
    """Whether `grammar` is proved unambiguous; False says only that no proof was found.

    The LR(1) automaton is given up when it has more than `max_states` states.
    """
    symbols: list[Symbol] = [*grammar.terminals, *grammar.rules]
    number = {symbol: n for n, symbol in enumerate(symbols)}
    words = len(grammar.terminals)
    alternatives: list[list[_Right]] = [[] for _ in range(words)]
    for group in grammar.rules.values():
        alternatives.append([tuple(number[symbol] for symbol in rule.right) for rule in group])
    return _is_distinguishable(alternatives, words) or _is_lr1(alternatives, words, number[grammar.start], max_states)


def _is_distinguishable(alternatives: list[list[_Right]], words: int) -> bool:
    """Whether words at the edges and lengths tell apart the rules of each nonterminal, and the parts of each rule.

    Then two different trees of one sentence would have the same rule at the root and the same sentences below it, so
    two smaller different trees of one sentence below it, and so on without end.
    """
    end = 1 << words
    first = _first_words(alternatives, words)
    mirrored = [[right[::-1] for right in rights] for rights in alternatives]
    last = _first_words(mirrored, words)
    shortest, longest = _lengths(alternatives, words)
    variable = [low < high or low == _LONG for low, high in zip(shortest, longest, strict=True)]
    # With one symbol of variable length at most, the length of the whole fixes the length of every part.
    if any(sum(variable[symbol] for symbol in right) > 1 for rights in alternatives for right in rights):
        return False
    for rights, backward in zip(alternatives, mirrored, strict=True):
        firsts = [_first_of(right, first, end) for right in rights]
        lasts = [_first_of(right, last, end) for right in backward]
        if _disjoint(firsts) or _disjoint(lasts):
            continue
        ranges = [(_total(right, shortest), _total(right, longest)) for right in rights]
        for (first_1, last_1, (low_1, high_1)), (first_2, last_2, (low_2, high_2)) in combinations(
            zip(firsts, lasts, ranges, strict=True), 2
        ):
            if first_1 & first_2 and last_1 & last_2 and low_1 <= high_2 and low_2 <= high_1:
                return False
    return True


def _is_lr1(alternatives: list[list[_Right]], words: int, start: int, max_states: int) -> bool:
    """Whether the canonical LR(1) automaton has no conflict and at most `max_states` states.

    Knuth's theorem needs every symbol to be reachable and productive, of which `Grammar` takes care.
    """
    end = 1 << words
    alternatives = [*alternatives, [(start,)]]  # the added rule ends where the whole sentence does
    begins, after, rest = _dots(alternatives, words)
    initial: tuple[_Item, ...] = ((begins[-1][0], end),)
    states = [initial]
    known = {initial}
    for state in states:  # which grows meanwhile
        reductions: list[int] = []
        moves: dict[int, list[_Item]] = {}
        for dot, ahead in _closure(state, words, begins, after, rest):
            if after[dot] < 0:
                reductions.append(ahead)
            else:
                moves.setdefault(after[dot], []).append((dot + 1, ahead))
        shifts = sum(1 << symbol for symbol in moves if symbol < words)
        if not _disjoint([shifts, *reductions]):
            return False
        for items in moves.values():
            target = tuple(sorted(items))
            if target not in known:
                if len(states) >= max_states:
                    return False
                known.add(target)
                states.append(target)
    return True


def _dots(alternatives: list[list[_Right]], words: int) -> tuple[list[list[int]], list[int], list[int]]:
    """Number every place of a dot in a rule, from the left of each rule to its right.

    Returns, for each symbol, the dots at the left of its rules; for each dot, the symbol to its right, or -1 at the
    end of the rule; and for each dot the first words of what comes after that symbol.
    """
    end = 1 << words
    first = _first_words(alternatives, words)
    begins: list[list[int]] = []
    after: list[int] = []
    rest: list[int] = []
    for rights in alternatives:
        begins.append([])
        for right in rights:
            begins[-1].append(len(after))
            after += [*right, -1]
            masks = [end, end]  # from the right; the first, of the dot at the end of the rule, is not used
            for symbol in reversed(right[1:]):
                masks.append(_followed(first[symbol], masks[-1], end))
            rest += reversed(masks[: len(right) + 1])
    return begins, after, rest


def _closure(
    state: Sequence[_Item], words: int, begins: list[list[int]], after: list[int], rest: list[int]
) -> list[_Item]:
    """All items of a state, given those whose dot is not at the left of a rule (or the initial one)."""
    end = 1 << words
    follow: dict[int, int] = {}  # nonterminal right of a dot -> what may follow it: the same for all its rules
    todo = list(state)
    while todo:
        dot, ahead = todo.pop()
        symbol = after[dot]
        if symbol >= words:
            known = follow.get(symbol, 0)
            new = _followed(rest[dot], ahead, end) & ~known
            if new:
                follow[symbol] = known | new
                todo.extend((begin, new) for begin in begins[symbol])
    return [*state, *((begin, ahead) for symbol, ahead in follow.items() for begin in begins[symbol])]


def _first_words(alternatives: list[list[_Right]], words: int) -> list[int]:
    """For each symbol the words with which what it derives can begin, and the end if it derives the empty sentence."""
    end = 1 << words
    first = [1 << symbol if symbol < words else 0 for symbol in range(len(alternatives))]
    changed = True
    while changed:
        changed = False
        for symbol in reversed(range(words, len(alternatives))):  # as a rule the symbols below come later
            mask = 0
            for right in alternatives[symbol]:
                mask |= _first_of(right, first, end)
            changed |= mask != first[symbol]
            first[symbol] = mask
    return first


def _first_of(right: _Right, first: list[int], end: int) -> int:
    """The first words of a sequence of symbols, given those of each symbol."""
    mask = end
    for symbol in right:
        mask = mask & ~end | first[symbol]
        if not mask & end:
            break
    return mask


def _followed(mask: int, following: int, end: int) -> int:
    """The first words of a sequence, given those of its first part and of the part that follows."""
    return mask & ~end | following if mask & end else mask


def _lengths(alternatives: list[list[_Right]], words: int) -> tuple[list[int], list[int]]:
    """For each symbol the shortest and the greatest length of what it derives.

    The greatest length of a recursive symbol is taken to be infinite. It is, unless the symbol derives just itself,
    and then the grammar is ambiguous.
    """
    shortest = [1 if symbol < words else _LONG for symbol in range(len(alternatives))]
    longest = shortest.copy()
    changed = True
    while changed:
        changed = False
        for symbol in reversed(range(words, len(alternatives))):
            low = min(_total(right, shortest) for right in alternatives[symbol])
            high = max(_total(right, longest) for right in alternatives[symbol])
            changed |= (low, high) != (shortest[symbol], longest[symbol])
            shortest[symbol], longest[symbol] = low, high
    return shortest, longest


def _total(right: _Right, lengths: list[int]) -> int:
    return min(_LONG, sum(lengths[symbol] for symbol in right))


def _disjoint(masks: Iterable[int]) -> bool:
    seen = 0
    for mask in masks:
        if mask & seen:
            return False
        seen |= mask
    return True
