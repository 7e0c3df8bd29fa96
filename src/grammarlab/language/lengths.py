"""The law of the length of a sentence, and the language given a greatest length, compiled by numba.

Power series in the number of words, over a normal form. Weights may be complex: with p^(1 + ih) for a rule of
probability p the imaginary part of a sum of derivations is h Σ p log p, without any cancellation for a tiny h (the
complex step of Squire and Trapp 1998). That gives the entropy of the derivations of each length.

N nonterminals, V words, S states, L the greatest length; a law is (L + 1,).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from grammarlab.language.earley import Floats, Ints, _room
from grammarlab.language.sampler import Keys, seeded, uniform

Weights = NDArray[Any]  # float64, or complex128 for a complex step


class Series(NamedTuple):
    """A normal form as arrays, rules by their left side."""

    start: int
    n_symbols: int
    waits: Ints  # (S,)
    advance_ptr: Ints  # by state; target -1: complete
    advance_target: Ints
    advance_weight: Weights
    corner_ptr: Ints  # by nonterminal
    corner_first: Ints
    corner_target: Ints
    corner_weight: Weights
    unit_ptr: Ints  # by nonterminal: what it becomes by units, itself too
    unit_symbol: Ints
    unit_weight: Weights


class Laws(NamedTuple):
    """Weight of each length. That of a state is of its whole rest, `after` without its first symbol."""

    symbols: Weights  # (N, L + 1) of nonterminals, not empty
    rules: Weights  # (N, L + 1) the same by rules that are no units
    states: Weights  # (S, L + 1)
    after: Weights  # (S, L + 1)


@njit(cache=True, nogil=True)
def laws(t: Series, length: int) -> Laws:
    """All laws up to a length."""
    N, S = t.n_symbols, len(t.waits)
    kind = t.advance_weight.dtype
    symbols, rules = np.zeros((N, length + 1), kind), np.zeros((N, length + 1), kind)
    states, after = np.zeros((S, length + 1), kind), np.zeros((S, length + 1), kind)
    for n in range(length + 1):
        if n > 0:
            for left in range(N):
                for e in range(t.corner_ptr[left], t.corner_ptr[left + 1]):
                    first, target = t.corner_first[e], t.corner_target[e]
                    if first >= N:
                        if target >= 0:
                            rules[left, n] += t.corner_weight[e] * states[target, n - 1]
                        elif n == 1:
                            rules[left, n] += t.corner_weight[e]
                    else:
                        total = t.corner_weight[e] * 0
                        for m in range(1, n):
                            total += symbols[first, m] * states[target, n - m]
                        rules[left, n] += t.corner_weight[e] * total
            for symbol in range(N):
                for e in range(t.unit_ptr[symbol], t.unit_ptr[symbol + 1]):
                    symbols[symbol, n] += t.unit_weight[e] * rules[t.unit_symbol[e], n]
            for s in range(S):
                first = t.waits[s]
                if first >= N:
                    states[s, n] = after[s, n - 1]
                else:
                    total = t.advance_weight[0] * 0
                    for m in range(1, n + 1):
                        total += symbols[first, m] * after[s, n - m]
                    states[s, n] = total
        for s in range(S):
            for e in range(t.advance_ptr[s], t.advance_ptr[s + 1]):
                if t.advance_target[e] >= 0:
                    after[s, n] += t.advance_weight[e] * states[t.advance_target[e], n]
                elif n == 0:
                    after[s, n] += t.advance_weight[e]
    return Laws(symbols, rules, states, after)


@njit(cache=True, nogil=True)
def draw(t: Series, laws: Laws, cumulative: Floats, keys: Keys) -> tuple[Ints, Ints]:
    """The words of a sentence for each key, and the bound of each, from the top down: first the length, then its parts.

    `cumulative`: (L + 1,) of the law of the sentence's length; its last value need not be 1.
    """
    N = t.n_symbols
    words, n_words = np.empty(64 + 8 * len(keys), np.int64), 0
    ends = np.empty(len(keys), np.int64)
    stack = np.empty((64, 2), np.int64)  # (symbol, or -1 - state; length)
    state = np.empty(4, np.uint64)
    for i in range(len(keys)):
        seeded(state, keys[i])
        length = np.searchsorted(cumulative, uniform(state) * cumulative[-1], side="right")
        depth = 0
        if length > 0:
            stack[0, 0], stack[0, 1], depth = t.start, length, 1
        while depth > 0:
            depth -= 1
            what, n = stack[depth, 0], stack[depth, 1]
            if depth + 3 > len(stack):
                longer = np.empty((2 * len(stack), 2), np.int64)
                longer[: len(stack)] = stack
                stack = longer
            if what >= N:
                words = _room(words, n_words + 1)
                words[n_words] = what - N
                n_words += 1
            elif what >= 0:
                left = what
                u = uniform(state) * laws.symbols[what, n]
                for e in range(t.unit_ptr[what], t.unit_ptr[what + 1]):
                    weight = t.unit_weight[e] * laws.rules[t.unit_symbol[e], n]
                    if weight > 0:
                        left = t.unit_symbol[e]
                        u -= weight
                        if u < 0:
                            break
                u = uniform(state) * laws.rules[left, n]
                first, target, part = -1, -1, 0
                for e in range(t.corner_ptr[left], t.corner_ptr[left + 1]):
                    if t.corner_target[e] < 0:
                        if n == 1:
                            first, target, part = t.corner_first[e], -1, 1
                            u -= t.corner_weight[e]
                    elif t.corner_first[e] >= N:
                        weight = t.corner_weight[e] * laws.states[t.corner_target[e], n - 1]
                        if weight > 0:
                            first, target, part = t.corner_first[e], t.corner_target[e], 1
                            u -= weight
                    else:
                        for m in range(1, n):
                            weight = (
                                t.corner_weight[e]
                                * laws.symbols[t.corner_first[e], m]
                                * laws.states[t.corner_target[e], n - m]
                            )
                            if weight > 0:
                                first, target, part = t.corner_first[e], t.corner_target[e], m
                                u -= weight
                                if u < 0:
                                    break
                    if u < 0:
                        break
                if target >= 0:
                    stack[depth, 0], stack[depth, 1] = -1 - target, n - part
                    depth += 1
                stack[depth, 0], stack[depth, 1] = first, part
                depth += 1
            else:
                s = -1 - what
                first = t.waits[s]
                u = uniform(state) * laws.states[s, n]
                target, part = -1, n
                for m in range(1, n + 1):
                    share = laws.symbols[first, m] if first < N else (1.0 if m == 1 else 0.0)
                    if share == 0:
                        continue
                    for e in range(t.advance_ptr[s], t.advance_ptr[s + 1]):
                        weight = share * t.advance_weight[e]
                        if t.advance_target[e] >= 0:
                            weight *= laws.states[t.advance_target[e], n - m]
                        elif m < n:
                            continue
                        if weight > 0:
                            target, part = t.advance_target[e], m
                            u -= weight
                            if u < 0:
                                break
                    if u < 0:
                        break
                if target >= 0:
                    stack[depth, 0], stack[depth, 1] = -1 - target, n - part
                    depth += 1
                stack[depth, 0], stack[depth, 1] = first, part
                depth += 1
        ends[i] = n_words
    return words[:n_words], ends


@njit(cache=True)
def _support(law: Floats) -> tuple[int, int]:
    """The first place that is not 0, and the one after the last."""
    first, end = 0, len(law)
    while first < end and law[first] == 0:
        first += 1
    while end > first and law[end - 1] == 0:
        end -= 1
    return first, end


@njit(cache=True, nogil=True)
def bounded_rows(
    t: Series,
    laws: Laws,
    lefts: Ints,
    rows: Floats,
    item_ptr: Ints,
    item_start: Ints,
    item_state: Ints,
    item_share: Floats,
    begun: Floats,
) -> Floats:
    """(n + 1, V + 1) distribution after each prefix, given that the sentence has at most L words.

    From the chart of the sentence without a limit: `item_share` is the forward weight of each item and `begun` that of
    each nonterminal, both relative to their column. Beside it runs, for each nonterminal begun at j, the law of how
    many words come after it (`rest`, relative to `begun`).
    """
    n, V, N, S = len(rows) - 1, rows.shape[1] - 1, t.n_symbols, len(t.waits)
    L = laws.states.shape[1] - 1
    result = np.zeros(rows.shape)
    rest = np.empty((np.count_nonzero(begun), L + 1))  # a row for each nonterminal begun somewhere
    place, n_places = np.empty(begun.shape, np.int64), 0
    new = np.empty((N, L + 1))
    within_states, within_after = np.empty((S, L + 1)), np.empty((S, L + 1))  # at most so many words
    # Most laws are of few lengths: from the first to before the last.
    spans_states, spans_after = np.zeros((S, 2), np.int64), np.zeros((S, 2), np.int64)
    for s in range(S):
        within_states[s], within_after[s] = np.cumsum(laws.states[s]), np.cumsum(laws.after[s])
        spans_states[s], spans_after[s] = _support(laws.states[s]), _support(laws.after[s])
    carried = np.zeros((S, L + 1))
    active = np.zeros(S, np.bool_)
    for k in range(min(n, L) + 1):
        room = L - k  # words that may still come
        carried[:] = 0.0
        active[:] = False
        for item in range(item_ptr[k], item_ptr[k + 1]):
            s = item_state[item]
            active[s] = True
            law = rest[place[item_start[item], lefts[s]]]
            for m in range(room + 1):
                carried[s, m] += item_share[item] * law[m]
        new[:] = 0.0
        if k == 0:
            new[t.start, 0] = 1.0
        for s in range(S):
            if active[s] and t.waits[s] < N:
                for m in range(room + 1):
                    if carried[s, m] > 0:
                        for more in range(spans_after[s, 0], min(spans_after[s, 1], room + 1 - m)):
                            new[t.waits[s], m + more] += carried[s, m] * laws.after[s, more]
        # From each nonterminal to what it may begin with, by rising length: a rest after a first symbol has words.
        direct = np.empty(N)
        for m in range(room + 1):
            for symbol in range(N):
                direct[symbol], new[symbol, m] = new[symbol, m], 0.0
            for left in range(N):
                if direct[left] > 0:
                    for e in range(t.unit_ptr[left], t.unit_ptr[left + 1]):
                        new[t.unit_symbol[e], m] += direct[left] * t.unit_weight[e]
            for left in range(N):
                if new[left, m] > 0:
                    for e in range(t.corner_ptr[left], t.corner_ptr[left + 1]):
                        first, target = t.corner_first[e], t.corner_target[e]
                        if first < N:
                            weight = new[left, m] * t.corner_weight[e]
                            for more in range(spans_states[target, 0], min(spans_states[target, 1], room + 1 - m)):
                                new[first, m + more] += weight * laws.states[target, more]

        row = result[k]
        row[V] = rows[k, V]
        for s in range(S):
            if active[s] and t.waits[s] >= N:
                for m in range(room):
                    row[t.waits[s] - N] += carried[s, m] * within_after[s, room - 1 - m]
        for left in range(N):
            if begun[k, left] == 0:
                continue
            for e in range(t.corner_ptr[left], t.corner_ptr[left + 1]):
                first, target = t.corner_first[e], t.corner_target[e]
                if first >= N:
                    for m in range(room):
                        share = new[left, m] * t.corner_weight[e]
                        row[first - N] += share if target < 0 else share * within_states[target, room - 1 - m]
            rest[n_places] = new[left] / begun[k, left]
            place[k, left] = n_places
            n_places += 1
        total = row.sum()
        if total > 0:
            row /= total
    return result


@njit(cache=True, nogil=True)
def tail_bound(
    t: Series,
    length: int,
    x: float,
    symbols: Floats,
    after: Floats,
    below: Floats,
    lefts: Ints,
    item_ptr: Ints,
    item_start: Ints,
    item_state: Ints,
    item_share: Floats,
    begun: Floats,
) -> float:
    """A bound on P(the sentence has more than `length` words | prefix), for all prefixes of a sentence.

    P(words to come > room) <= E[x^words] / x^(room + 1), by Markov's inequality for any x > 1. `symbols` (N,) and
    `after` (S,) are the laws as power series at x, `below` (N, N) the left corners at x; the rest as in `bounded_rows`.
    """
    N = t.n_symbols
    rest = np.zeros(begun.shape)
    wanted = np.zeros(N)
    bound = 0.0
    for k in range(len(item_ptr) - 1):
        wanted[:] = 0.0
        mean = 0.0
        for item in range(item_ptr[k], item_ptr[k + 1]):
            s = item_state[item]
            weight = item_share[item] * rest[item_start[item], lefts[s]] * after[s]
            if t.waits[s] < N:
                wanted[t.waits[s]] += weight
                mean += weight * symbols[t.waits[s]]
            else:
                mean += weight * x
        if k == 0:
            wanted[t.start], mean = 1.0, symbols[t.start]
        bound = max(bound, mean * x ** -(length - k + 1.0))
        for upper in range(N):
            if wanted[upper] > 0:
                for lower in range(N):
                    rest[k, lower] += wanted[upper] * below[upper, lower]
        for symbol in range(N):
            if begun[k, symbol] > 0:
                rest[k, symbol] /= begun[k, symbol]
    return bound
