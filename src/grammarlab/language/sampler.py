"""Sentences drawn from a grammar by rewriting its start symbol, compiled by numba.

Each sentence has a random stream of its own, xoshiro256++ (Blackman and Vigna 2021) seeded by splitmix64 from a key of
64 bits: it is the same whatever else is drawn beside it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from grammarlab.language.earley import Floats, Ints, _room

Keys = NDArray[np.uint64]


class Rules(NamedTuple):
    """A grammar as arrays: N nonterminals, then words from N on; the rules of X from `rule_ptr[X]`."""

    start: int
    n_symbols: int
    rule_ptr: Ints
    cumulative: Floats  # within the rules of a symbol; the last is 1
    log_prob: Floats
    right_ptr: Ints
    right: Ints
    shortest: Ints  # (N + V,) words of the shortest yield
    rule_shortest: Ints  # the same of a right side


@njit(cache=True)
def seeded(state: Keys, key: np.uint64) -> None:
    """Fill the four words of a generator's state from a key."""
    for i in range(4):
        key += np.uint64(0x9E3779B97F4A7C15)
        z = key
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state[i] = z ^ (z >> np.uint64(31))


@njit(cache=True)
def uniform(s: Keys) -> float:
    """A multiple of 2^-53 from 0 to below 1."""
    total = s[0] + s[3]
    result = ((total << np.uint64(23)) | (total >> np.uint64(41))) + s[0]
    t = s[1] << np.uint64(17)
    s[2] ^= s[0]
    s[3] ^= s[1]
    s[1] ^= s[2]
    s[0] ^= s[3]
    s[2] ^= t
    s[3] = (s[3] << np.uint64(45)) | (s[3] >> np.uint64(19))
    return float(result >> np.uint64(11)) * 2.0**-53


@njit(cache=True, nogil=True)
def draw(rules: Rules, keys: Keys, max_length: int) -> tuple[Ints, Ints, Floats]:
    """The words of a sentence for each key, the bound of each, and the log-probability of each derivation.

    With `max_length` of 0 or more, given that the sentence has at most so many words: what turns out longer is thrown
    away and drawn again, from the same stream. (Keys for which that is hopeless are the caller's business.)
    """
    N = rules.n_symbols
    words, n_words = np.empty(64 + 8 * len(keys), np.int64), 0
    ends, logs = np.empty(len(keys), np.int64), np.empty(len(keys))
    stack = np.empty(64, np.int64)
    state = np.empty(4, np.uint64)
    for i in range(len(keys)):
        seeded(state, keys[i])
        begin = n_words
        while True:
            stack[0], depth, log = rules.start, 1, 0.0
            least = rules.shortest[rules.start]  # words that the sentence is sure to have
            while depth > 0:
                depth -= 1
                symbol = stack[depth]
                if symbol >= N:
                    words = _room(words, n_words + 1)
                    words[n_words] = symbol - N
                    n_words += 1
                    continue
                u = uniform(state)
                rule, last = rules.rule_ptr[symbol], rules.rule_ptr[symbol + 1] - 1
                if last - rule < 8:
                    while u >= rules.cumulative[rule]:
                        rule += 1
                else:
                    while rule < last:
                        middle = (rule + last) // 2
                        if u >= rules.cumulative[middle]:
                            rule = middle + 1
                        else:
                            last = middle
                log += rules.log_prob[rule]
                least += rules.rule_shortest[rule] - rules.shortest[symbol]
                if 0 <= max_length < least:
                    break
                first, last = rules.right_ptr[rule], rules.right_ptr[rule + 1]
                stack = _room(stack, depth + last - first)
                for child in range(last - 1, first - 1, -1):
                    stack[depth] = rules.right[child]
                    depth += 1
            if not 0 <= max_length < least:
                break
            n_words = begin
        ends[i], logs[i] = n_words, log
    return words[:n_words], ends, logs
