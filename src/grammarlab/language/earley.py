"""The loops over the words of a sentence, compiled by numba. Arrays in, arrays out; `engine.py` is their only user.

`forward` is Earley's algorithm (Earley 1970; with probabilities Stolcke 1995) over a normal form, from left to right:

  item (j, s) of column k: words j+1..k are read as the part of a rule that leads to state s, with its inner weight.
  forward weight of an item: its inner weight times that of its X being begun at j. So it need not be kept: the
      distribution of the next word follows from the items and `begun`, (n + 1, N), one row a column.
  completion: that words j+1..k are an X leads to the same few things for every k. They are found once for each (j, X)
      and kept as its links. Where they are a single thing, that is what a link to (j, X) leads to at once: on a
      right-recursive grammar the work a word stays constant (Leo 1991, here with weights and ambiguity).

Column k is scaled by 1 / P(word k | those before), so that no length underflows. What is rare beyond 1e-250 against
the rest of its prefix is noticed, and the caller calculates in logs instead.

n words of the sentence, N nonterminals, V words of the language, S states; a column has V + 1 places: words and end.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

REAL, LOG, BEST, COUNT = range(4)  # how weights combine: + ×, the same in logs, max of logs, whole numbers up to 2

_TINY, _HUGE = 1e-250, 1e250
_COMPLETE = -1  # target of an advance, as in normal_form.py
_END = -1  # target of a link: the sentence; X = -2 - target: X is complete; else a state


class Tables(NamedTuple):
    """A normal form as arrays. What belongs to row r of a list stands from `_ptr[r]` to `_ptr[r + 1]`."""

    start: int
    n_symbols: int
    n_words: int
    empty: float  # weight of the empty sentence
    lefts: Ints  # (S,)
    waits: Ints  # (S,)
    advance_ptr: Ints  # by state
    advance_target: Ints
    advance_weight: Floats
    scan_ptr: Ints  # by word: rules that begin with it
    scan_left: Ints
    scan_target: Ints
    scan_weight: Floats
    corner_ptr: Ints  # by nonterminal Y: rules that begin with a symbol that Y completes, by units or itself
    corner_left: Ints
    corner_target: Ints
    corner_weight: Floats
    above_ptr: Ints  # by nonterminal Y: the X that it completes by units
    above_symbol: Ints
    above_weight: Floats
    below_ptr: Ints  # by nonterminal: what it may begin with, itself too
    below_symbol: Ints
    below_weight: Floats
    first_ptr: Ints  # by nonterminal: words that it may begin with
    first_word: Ints
    first_weight: Floats


class Chart(NamedTuple):
    """What `forward` found. Items of column k: `item_ptr[k]` to `item_ptr[k + 1]`."""

    value: float  # natural log of the sentence's weight (COUNT: the weight)
    arithmetic: int
    exact: bool  # False: something was too rare beside the rest for this arithmetic
    rows: Floats  # (n + 1, V + 1) REAL and LOG: distribution after each prefix; 0 where it is impossible
    item_ptr: Ints
    item_start: Ints
    item_state: Ints
    item_value: Floats
    begun: Floats  # (n + 1, N)
    spans: Ints  # (., 3) start, nonterminal, end of what was complete, if not collapsed
    span_value: Floats


@njit(cache=True)
def _mul(sr: int, a: float, b: float) -> float:
    if sr == REAL:
        return a * b
    if sr == COUNT:
        return min(a * b, 2.0)
    return a + b


@njit(cache=True)
def _add(sr: int, a: float, b: float) -> float:
    if sr == REAL:
        return a + b
    if sr == COUNT:
        return min(a + b, 2.0)
    if sr == BEST:
        return max(a, b)
    if a < b:
        a, b = b, a
    if b == -np.inf:
        return a
    return a + math.log1p(math.exp(b - a))


@njit(cache=True)
def _room(array, needed):  # type: ignore[no-untyped-def]
    """The same array, with at least `needed` places."""
    if needed <= len(array):
        return array
    longer = np.empty(max(needed, 2 * len(array)), array.dtype)
    longer[: len(array)] = array
    return longer


@njit(cache=True)
def _push(heap: Ints, size: int, value: int) -> int:
    i = size
    while i > 0 and heap[(i - 1) // 2] < value:
        heap[i] = heap[(i - 1) // 2]
        i = (i - 1) // 2
    heap[i] = value
    return size + 1


@njit(cache=True)
def _pop(heap: Ints, size: int) -> int:
    """Remove the largest, heap[0]."""
    size -= 1
    value = heap[size]
    i = 0
    while 2 * i + 1 < size:
        child = 2 * i + 1
        if child + 1 < size and heap[child + 1] > heap[child]:
            child += 1
        if heap[child] <= value:
            break
        heap[i] = heap[child]
        i = child
    heap[i] = value
    return size


@njit(cache=True, nogil=True)
def forward(t: Tables, sr: int, words: Ints, collapse: bool) -> Chart:
    """The chart of a sentence (n,), words as indices; one that the language lacks is -1.

    `collapse`: take completions that lead to a single thing at once. Without it every span is recorded.
    """
    n, N, V, S = len(words), t.n_symbols, t.n_words, len(t.lefts)
    zero = -np.inf if sr in (LOG, BEST) else 0.0
    one = 0.0 if sr in (LOG, BEST) else 1.0
    rows = np.zeros((n + 1, V + 1))
    begun = np.full((n + 1, N), zero)
    raw = np.full(V + 1, zero)
    wanted = np.full(N, zero)
    wanted_list = np.empty(N, np.int64)

    item_ptr = np.zeros(n + 2, np.int64)
    item_start, item_state, item_next = np.empty(64, np.int64), np.empty(64, np.int64), np.empty(64, np.int64)
    item_value = np.empty(64)
    n_items = 0
    head = np.full((n + 1, N + V), -1, np.int64)  # newest item of the column that waits for the symbol
    slot = np.full((n + 1) * S, -1, np.int64)  # newest item of (start, state)

    # what is complete in the column at hand, by start and nonterminal; valid where the stamp is the column
    done_stamp = np.full((n + 1) * N, -1, np.int64)
    done_next = np.empty((n + 1) * N, np.int64)
    done_value = np.empty((n + 1) * N)
    start_stamp = np.full(n + 1, -1, np.int64)
    start_done = np.empty(n + 1, np.int64)
    heap, heap_size = np.empty(n + 1, np.int64), 0

    link_ptr = np.full((n + 1) * N, -1, np.int64)
    link_len = np.zeros((n + 1) * N, np.int64)
    link_target, link_start, link_weight = np.empty(64, np.int64), np.empty(64, np.int64), np.empty(64)
    n_links = 0
    stack = np.empty(64, np.int64)  # (start, nonterminal) whose links are to be found

    spans, span_value, n_spans = np.empty((1 if collapse else 64, 3), np.int64), np.empty(1 if collapse else 64), 0
    exact = True
    value, total, possible = 0.0, one, True
    ended = t.empty

    for k in range(n + 1):
        item_ptr[k] = n_items
        if k > 0:
            word = words[k - 1]
            if word < 0 or raw[word] == zero:
                possible = False
                item_ptr[k:] = n_items
                break
            scale = one
            if sr in (REAL, LOG):
                scale = 1.0 / raw[word] if sr == REAL else -raw[word]
                value += math.log(raw[word] / total) if sr == REAL else raw[word] - total
            ended = zero

            # What the word leads to, as links that are used once.
            kept = n_links
            item = head[k - 1, N + word]
            while item >= 0:
                state = item_state[item]
                first, last = t.advance_ptr[state], t.advance_ptr[state + 1]
                link_target = _room(link_target, n_links + last - first)
                link_start = _room(link_start, n_links + last - first)
                link_weight = _room(link_weight, n_links + last - first)
                for e in range(first, last):
                    target = t.advance_target[e]
                    link_target[n_links] = target if target >= 0 else -2 - t.lefts[state]
                    link_start[n_links] = item_start[item]
                    link_weight[n_links] = _mul(sr, item_value[item], t.advance_weight[e])
                    n_links += 1
                item = item_next[item]
            for e in range(t.scan_ptr[word], t.scan_ptr[word + 1]):
                if begun[k - 1, t.scan_left[e]] != zero:
                    link_target = _room(link_target, n_links + 1)
                    link_start = _room(link_start, n_links + 1)
                    link_weight = _room(link_weight, n_links + 1)
                    target = t.scan_target[e]
                    link_target[n_links] = target if target >= 0 else -2 - t.scan_left[e]
                    link_start[n_links] = k - 1
                    link_weight[n_links] = t.scan_weight[e]
                    n_links += 1
            begin, end, so_far = kept, n_links, scale
            n_links = kept

            # Follow the links; then those of each completion, from the latest start to the earliest.
            done = -1
            while True:
                for link in range(begin, end):
                    weight = _mul(sr, so_far, link_weight[link])
                    if sr == REAL and (weight < _TINY or weight > _HUGE):
                        exact = False
                    target, start = link_target[link], link_start[link]
                    if target >= 0:
                        key = start * S + target
                        if slot[key] >= item_ptr[k]:
                            item_value[slot[key]] = _add(sr, item_value[slot[key]], weight)
                        else:
                            item_start = _room(item_start, n_items + 1)
                            item_state = _room(item_state, n_items + 1)
                            item_next = _room(item_next, n_items + 1)
                            item_value = _room(item_value, n_items + 1)
                            item_start[n_items], item_state[n_items], item_value[n_items] = start, target, weight
                            item_next[n_items] = head[k, t.waits[target]]
                            head[k, t.waits[target]] = n_items
                            slot[key] = n_items
                            n_items += 1
                    elif target == _END:
                        ended = _add(sr, ended, weight)
                    else:
                        key = start * N - 2 - target
                        if done_stamp[key] == k:
                            done_value[key] = _add(sr, done_value[key], weight)
                        else:
                            done_stamp[key], done_value[key], done_next[key] = k, weight, -1
                            if start_stamp[start] == k:
                                done_next[key] = start_done[start]
                            else:
                                start_stamp[start] = k
                                heap_size = _push(heap, heap_size, start)
                            start_done[start] = key
                if done >= 0:
                    done = done_next[done]
                if done < 0:
                    if heap_size == 0:
                        break
                    done = start_done[heap[0]]
                    heap_size = _pop(heap, heap_size)

                so_far = done_value[done]
                start, symbol = done // N, done % N
                if not collapse:
                    if n_spans == len(span_value):
                        longer = np.empty((2 * n_spans, 3), np.int64)
                        longer[:n_spans] = spans
                        spans = longer
                        span_value = _room(span_value, n_spans + 1)
                    spans[n_spans, 0], spans[n_spans, 1], spans[n_spans, 2] = start, symbol, k
                    span_value[n_spans] = so_far
                    n_spans += 1

                # Find what it leads to; what that leads to is found first.
                stack[0], depth = done, 1
                while depth > 0 and link_ptr[done] < 0:
                    here = stack[depth - 1]
                    start, symbol = here // N, here % N
                    reserve = 1 + t.corner_ptr[symbol + 1] - t.corner_ptr[symbol]
                    found = depth
                    for above in range(t.above_ptr[symbol], t.above_ptr[symbol + 1]):
                        item = head[start, t.above_symbol[above]]
                        while item >= 0:
                            state = item_state[item]
                            last = t.advance_ptr[state + 1]
                            reserve += last - t.advance_ptr[state]
                            key = item_start[item] * N + t.lefts[state]
                            if collapse and t.advance_target[last - 1] == _COMPLETE and link_ptr[key] < 0:
                                stack = _room(stack, depth + 1)
                                stack[depth] = key
                                depth += 1
                            item = item_next[item]
                    if depth > found:
                        continue
                    depth -= 1
                    if link_ptr[here] >= 0:
                        continue
                    link_ptr[here] = n_links
                    link_target = _room(link_target, n_links + reserve)
                    link_start = _room(link_start, n_links + reserve)
                    link_weight = _room(link_weight, n_links + reserve)
                    for above in range(t.above_ptr[symbol], t.above_ptr[symbol + 1]):
                        upper = t.above_symbol[above]
                        if start == 0 and upper == t.start:
                            link_target[n_links], link_start[n_links] = _END, 0
                            link_weight[n_links] = t.above_weight[above]
                            n_links += 1
                        item = head[start, upper]
                        while item >= 0:
                            state = item_state[item]
                            inner = _mul(sr, item_value[item], t.above_weight[above])
                            for e in range(t.advance_ptr[state], t.advance_ptr[state + 1]):
                                weight = _mul(sr, inner, t.advance_weight[e])
                                target, origin = t.advance_target[e], item_start[item]
                                if target == _COMPLETE:
                                    target = -2 - t.lefts[state]
                                    single = origin * N + t.lefts[state]
                                    if collapse and link_len[single] == 1:
                                        single = link_ptr[single]
                                        target, origin = link_target[single], link_start[single]
                                        weight = _mul(sr, weight, link_weight[single])
                                if sr == REAL and (weight < _TINY or weight > _HUGE):
                                    exact = False
                                newest = n_links - 1
                                if (
                                    newest >= link_ptr[here]
                                    and target < 0
                                    and link_target[newest] == target
                                    and link_start[newest] == origin
                                ):
                                    link_weight[newest] = _add(sr, link_weight[newest], weight)
                                else:
                                    link_target[n_links], link_start[n_links] = target, origin
                                    link_weight[n_links] = weight
                                    n_links += 1
                            item = item_next[item]
                    for e in range(t.corner_ptr[symbol], t.corner_ptr[symbol + 1]):
                        if begun[start, t.corner_left[e]] != zero:
                            link_target[n_links], link_start[n_links] = t.corner_target[e], start
                            link_weight[n_links] = t.corner_weight[e]
                            n_links += 1
                    link_len[here] = n_links - link_ptr[here]
                begin = link_ptr[done]
                end = begin + link_len[done]

        # The distribution of what comes next.
        raw[:] = zero
        raw[V] = ended
        n_wanted = 0
        for item in range(item_ptr[k], n_items):
            weight = _mul(sr, item_value[item], begun[item_start[item], t.lefts[item_state[item]]])
            if sr == REAL and weight < _TINY:
                exact = False
            symbol = t.waits[item_state[item]]
            if symbol >= N:
                raw[symbol - N] = _add(sr, raw[symbol - N], weight)
            else:
                if wanted[symbol] == zero:
                    wanted_list[n_wanted] = symbol
                    n_wanted += 1
                wanted[symbol] = _add(sr, wanted[symbol], weight)
        if k == 0:
            wanted_list[0], wanted[t.start], n_wanted = t.start, one, 1
        for w in range(n_wanted):
            symbol = wanted_list[w]
            for e in range(t.below_ptr[symbol], t.below_ptr[symbol + 1]):
                weight = _mul(sr, wanted[symbol], t.below_weight[e])
                begun[k, t.below_symbol[e]] = _add(sr, begun[k, t.below_symbol[e]], weight)
            for e in range(t.first_ptr[symbol], t.first_ptr[symbol + 1]):
                weight = _mul(sr, wanted[symbol], t.first_weight[e])
                raw[t.first_word[e]] = _add(sr, raw[t.first_word[e]], weight)
            wanted[symbol] = zero
        if sr == REAL:
            total = raw.sum()
            rows[k] = raw / total
        elif sr == LOG:
            most = raw.max()
            rows[k] = np.exp(raw - most)
            total = most + math.log(rows[k].sum())
            rows[k] /= rows[k].sum()
        item_ptr[k + 1] = n_items

    if not possible or ended == zero:
        value = 0.0 if sr == COUNT else -np.inf
    elif sr == REAL:
        value += math.log(ended / total)
    elif sr == LOG:
        value += ended - total
    else:
        value = ended
    return Chart(
        value,
        sr,
        exact,
        rows,
        item_ptr,
        item_start[:n_items],
        item_state[:n_items],
        item_value[:n_items],
        begun,
        spans[:n_spans],
        span_value[:n_spans],
    )


@njit(cache=True, nogil=True)
def values(t: Tables, sr: int, log: Tables, words: Ints, ends: Ints) -> Floats:
    """(n,) the value of each sentence's chart, in logs where need be; sentence i ends before words[ends[i]]."""
    found = np.empty(len(ends))
    start = 0
    for i in range(len(ends)):
        tables, arithmetic = t, sr
        while True:  # one call in one place: it is compiled into this loop
            chart = forward(tables, arithmetic, words[start : ends[i]], True)
            if chart.exact:
                break
            tables, arithmetic = log, LOG
        found[i] = chart.value
        start = ends[i]
    return found
