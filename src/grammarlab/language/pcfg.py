"""The language of a probabilistic context-free grammar.

Small languages are written out once and answered from the table, by numpy alone; all others by the compiled engine,
whose loading takes about a second. Both give the same numbers.
"""

from __future__ import annotations

import copy
import hashlib
import heapq
import math
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from grammarlab.language.ambiguity import proved_unambiguous
from grammarlab.language.grammar import Grammar, GrammarError
from grammarlab.language.normal_form import Discrete, equations_of, longest_yields, shortest_yields
from grammarlab.language.protocol import (
    ENUMERATION_LIMIT,
    FloatArray,
    IndexArray,
    NotEnumerableError,
    Quantity,
    Sentence,
    as_sentence,
    padded,
)
from grammarlab.language.sums import Sums
from grammarlab.language.table import SentenceTable
from grammarlab.language.written_out import written_out

if TYPE_CHECKING:
    from grammarlab.language.bounded import Bounded
    from grammarlab.language.engine import Engine
    from grammarlab.language.parses import Parse

# Up to how many derivations a language is answered from a table.
TABLE_LIMIT = 10_000

# Up to how many words of prefixes, about.
_TABLE_WORDS = 20_000_000

# Sentences drawn where a sum over all of them is out of reach.
ESTIMATE_SAMPLES = 2_000
ESTIMATE_SEED = 2_718_281_828  # fixed, and no seed that a run is likely to have

# Words up to which so many sentences can be scored: under an ambiguous grammar the work grows with their cube.
_LONGEST_SCORED = 2_000

# Where counting derivations stops: a grammar of a few lines can have more than can be written down.
_MANY = 10**15

_COUNTS: Discrete[int] = Discrete(1, 0, _MANY, lambda a, b: min(a + b, _MANY), lambda a, b: min(a * b, _MANY))


class PCFG:
    """The language of a grammar, or of those of its sentences that a limit leaves (`truncated`).

    Recursive, ambiguous, with empty rules, with cycles of unit rules: all that a grammar can be. An improper one, some
    of whose derivations never end, is taken given that they end if `allow_improper`; `mass` is then the probability of
    that. Raises `GrammarError` for an improper grammar that is not allowed.
    """

    def __init__(self, grammar: Grammar, *, allow_improper: bool = False, table_limit: int = TABLE_LIMIT) -> None:
        sums = Sums(grammar)
        self.mass = float(sums.masses()[0])
        if self.mass < 1:
            if not allow_improper:
                raise GrammarError(
                    f"improper grammar: a derivation from {grammar.start} ends with probability {self.mass:.6g} only "
                    f"(spectral radius {sums.spectral_radius:.6g}); allow_improper=true takes it given that it "
                    "ends"
                )
            grammar = sums.conditioned()
            sums = Sums(grammar)
        self.grammar, self.sums = grammar, sums
        self.terminals = grammar.terminals
        self._bounded: Bounded | None = None  # `truncated` puts it there
        self._table_limit = table_limit

    # ---- one sentence or many ----

    def sample(self, n: int, rng: np.random.Generator) -> list[Sentence]:
        if self._small is not None:
            return self._small.sample(n, rng)
        words, ends, _ = self._draw(_keys(rng, n))
        known = [self.terminals[index] for index in words.tolist()]
        bounds = [0, *ends.tolist()]
        return [tuple(known[bounds[i] : bounds[i + 1]]) for i in range(n)]

    def sample_indices(self, n: int, rng: np.random.Generator) -> IndexArray:
        return self._small.sample_indices(n, rng) if self._small is not None else padded(*self._draw(_keys(rng, n))[:2])

    def log_prob(self, sentences: Sequence[Sentence]) -> FloatArray:
        if self._small is not None:
            return self._small.log_prob(sentences)
        known = [as_sentence(sentence) for sentence in sentences]
        logs = self.engine.log_probs(known)
        if self._bounded is not None:
            logs -= math.log(self._bounded.mass)
            logs[[len(sentence) > self._bounded.length for sentence in known]] = -math.inf
        return logs

    def next_token_probs(self, sentence: Sentence) -> FloatArray:
        if self._small is not None:
            return self._small.next_token_probs(sentence)
        return (self._bounded or self.engine).rows(as_sentence(sentence))

    def viterbi(self, sentence: Sentence) -> Parse:
        """The most probable derivation of a sentence. Raises `ValueError` for what is no sentence of the grammar."""
        from grammarlab.language.parses import best_parse

        return best_parse(self.grammar, self.engine, as_sentence(sentence))

    def parses(self, sentence: Sentence) -> float:
        """The number of derivations, a whole number of any size, or infinity where unit rules run in cycles."""
        from grammarlab.language.parses import count_parses

        return count_parses(self.grammar, self.engine, as_sentence(sentence))

    def prefix_log_prob(self, prefix: Sentence) -> float:
        """Natural log of the probability that a sentence begins with these words; −inf if none does."""
        words = as_sentence(prefix)
        if not set(words) <= set(self.terminals):
            return -math.inf
        rows = self.next_token_probs(words)
        steps = [rows[i, self.terminals.index(word)] for i, word in enumerate(words)]
        return -math.inf if 0 in steps else math.fsum(map(math.log, steps))

    # ---- sums over the language ----

    def entropy(self) -> Quantity:
        if self._small is not None:
            return self._small.entropy()
        if self.unambiguous:
            return Quantity(self.derivation_entropy())
        if self._derivations <= ENUMERATION_LIMIT:
            return self._write_out().entropy()
        longest = math.inf
        if self.mean_length().value <= _LONGEST_SCORED:
            words, ends, derivations = self._draw(_keys(np.random.default_rng(ESTIMATE_SEED), ESTIMATE_SAMPLES))
            longest = np.diff(ends, prepend=0).max()
        if longest > _LONGEST_SCORED:
            raise NotEnumerableError(
                "the entropy of a sentence is out of reach: it is not proved to be that of a derivation, and some of "
                f"those to estimate it from have more than {_LONGEST_SCORED} words; truncated(N) has one"
            )
        logs = self.engine.log_probs_of(words, ends)
        log_mass = 0.0 if self._bounded is None else math.log(self._bounded.mass)
        estimates = [_mean(log_mass - logs)]
        if derivations is not None and math.isfinite(entropy := self.derivation_entropy()):
            # What a derivation tells beyond its sentence: it varies little where few sentences are ambiguous.
            beyond = _mean(logs - derivations)
            # That no drawn sentence was ambiguous does not say that none is: the error is that of one with two
            # derivations as likely as each other.
            least = math.log(2) / ESTIMATE_SAMPLES
            estimates.append(Quantity(max(0.0, entropy - beyond.value), max(beyond.stderr or 0.0, least)))
        return min(estimates, key=lambda estimate: estimate.stderr or 0.0)

    def derivation_entropy(self) -> float:
        """Entropy of a derivation, in nats: at least that of the sentence, equal if none has two."""
        if self._bounded is not None:
            return self._bounded.derivation_entropy()
        return float(self.sums.derivation_entropies()[0])

    @cached_property
    def unambiguous(self) -> bool:
        """Whether it is proved that no sentence has two derivations; it cannot always be decided."""
        return proved_unambiguous(self.grammar)

    def mean_length(self) -> Quantity:
        if self._bounded is not None:
            law = self._bounded.law
            return Quantity(float(np.arange(len(law)) @ law / self._bounded.mass))
        return Quantity(float(self.sums.mean_lengths()[0]))

    def length_variance(self) -> float:
        """Variance of the number of words."""
        if self._bounded is not None:
            n, law = np.arange(len(self._bounded.law)), self._bounded.law / self._bounded.mass
            return float((n - n @ law) ** 2 @ law)
        return float(self.sums.length_variances()[0])

    def length_law(self, longest: int) -> FloatArray:
        """(longest + 1,) probability that a sentence has 0, 1, … words."""
        from grammarlab.language.bounded import Bounded

        law = Bounded(self.engine, longest).law
        if self._bounded is None:
            return law
        return np.where(np.arange(longest + 1) <= self._bounded.length, law, 0.0) / self._bounded.mass

    def max_length(self) -> float:
        return self._longest if self._bounded is None else int(np.flatnonzero(self._bounded.law)[-1])

    def checksum(self) -> str:
        """Of the rules that can be reached, whatever their order, layout and the notation of their probabilities."""
        rules = sorted(f"{rule} [{rule.probability:.12g}]" for group in self.grammar.rules.values() for rule in group)
        return hashlib.sha256("\n".join([self.grammar.start.name, *rules]).encode()).hexdigest()[:16]

    # ---- written out ----

    def size(self, limit: int = ENUMERATION_LIMIT) -> float:
        if self.max_length() == math.inf:
            return math.inf
        return len(self.enumerate(limit))

    def enumerate(
        self, limit: int = ENUMERATION_LIMIT, *, count: int | None = None, mass: float | None = None
    ) -> list[tuple[Sentence, float]]:
        """See `Language`. With `count` or `mass` the most probable sentences alone, of an infinite language too.

        `mass`: until they have that probability. Raises `NotEnumerableError` where that takes more than `limit` steps
        from a prefix to a longer one.
        """
        if count is None and mass is None:
            return self._table(limit).enumerate(limit)
        if count is not None and count < 0:
            raise ValueError(f"count={count}: must be at least 0")
        if mass is not None and not 0 <= mass < 1:
            raise ValueError(f"mass={mass}: must be at least 0 and below 1")
        found: list[tuple[Sentence, float]] = []
        total = 0.0
        # No sentence is more probable than its prefixes: the best prefix first, and what ends is the next best.
        rank = {word: i for i, word in enumerate((*self.terminals, ""))}
        queue: list[tuple[float, tuple[int, ...], Sentence, bool]] = [(0.0, (), (), False)]
        steps = 0
        while queue and (count is None or len(found) < count) and (mass is None or total < mass):
            surprise, _, words, ended = heapq.heappop(queue)
            if ended:
                found.append((words, math.exp(-surprise)))
                total += found[-1][1]
                continue
            steps += 1
            if steps > limit:
                raise NotEnumerableError(
                    f"{len(found)} sentences of probability {total:.6g} are found within limit={limit} steps; a larger "
                    "limit may find more"
                )
            for word, p in zip((*self.terminals, ""), self.next_token_probs(words)[-1], strict=True):
                if p > 0:
                    longer = words if word == "" else (*words, word)
                    key = tuple(rank[w] for w in longer)
                    heapq.heappush(queue, (surprise - math.log(p), key, longer, word == ""))
        return found

    def sizes(self, longest: int, limit: int = ENUMERATION_LIMIT) -> list[int]:
        """Number of sentences of 0, 1, … `longest` words.

        Raises `NotEnumerableError` where the grammar is not proved unambiguous, so that they have to be written out,
        and they have more than `limit` derivations.
        """
        if self._bounded is not None and longest > self._bounded.length:
            return [*self.sizes(self._bounded.length, limit), *[0] * (longest - self._bounded.length)]
        if self.unambiguous:
            from grammarlab.language.bounded import Bounded

            return Bounded(self.engine, longest).sizes()
        if shortest_yields(self.grammar)[0] > longest >= 0:
            return [0] * (longest + 1)
        lengths = Counter(len(words) for words, _ in self.truncated(longest).enumerate(limit))
        return [lengths[n] for n in range(longest + 1)]

    def truncated(self, max_length: int) -> PCFG:
        if self.max_length() <= max_length:
            return self
        from grammarlab.language.bounded import Bounded

        bounded = Bounded(self.engine, max_length, self._longest)
        if bounded.mass == 0:
            shortest = shortest_yields(self.grammar)[0]
            raise ValueError(f"no sentence has at most {max_length} words; the shortest has {shortest}")
        new = copy.copy(self)
        new._bounded = bounded
        new.mass = self.mass * bounded.mass / (1.0 if self._bounded is None else self._bounded.mass)
        for answer in ("_small", "_derivations"):  # kept, but of the language without the limit
            new.__dict__.pop(answer, None)
        return new

    # ---- what stands behind it ----

    @cached_property
    def engine(self) -> Engine:
        from grammarlab.language.engine import Engine

        return Engine(self.grammar)

    @cached_property
    def _longest(self) -> float:
        return longest_yields(self.grammar)[0]

    def _draw(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Word indices of a sentence for each key, the bound of each, and of its derivation log p, if there is one.

        Of the derivation without a limit, also where there is a limit.
        """
        return self.engine.draw(keys) if self._bounded is None else self._bounded.draw(keys)

    @cached_property
    def _small(self) -> SentenceTable | None:
        few = self._derivations <= self._table_limit
        # The table holds every prefix: of one long sentence as many words as of many short ones.
        return self._write_out() if few and self._derivations * self.max_length() ** 2 <= _TABLE_WORDS else None

    @cached_property
    def _derivations(self) -> int:
        """Number of derivations, up to a cap: at least the number of sentences, and equal if none is ambiguous."""
        if self._bounded is not None:
            return int(min(self._bounded.derivations(), _MANY))
        count = _COUNTS.solve(equations_of(self.grammar, lambda _: 1))[0]
        if count == _MANY and self.sums.recursive and self._longest < math.inf:  # it may have been units in cycles
            from grammarlab.language.bounded import Bounded

            count = int(min(Bounded(self.engine, int(self._longest)).derivations(), _MANY))
        return count

    def _table(self, limit: int) -> SentenceTable:
        if self.max_length() == math.inf:
            raise NotEnumerableError("the language has infinitely many sentences; a count or a mass can be enumerated")
        if self._derivations > limit:
            count = f"more than {_MANY}" if self._derivations == _MANY else str(self._derivations)
            raise NotEnumerableError(f"the language has {count} derivations, {limit} can be written out")
        return self._small if self._small is not None else self._write_out()

    def _write_out(self) -> SentenceTable:
        return SentenceTable(self.terminals, written_out(self.grammar, int(self.max_length())))


def _mean(values: np.ndarray) -> Quantity:
    return Quantity(float(values.mean()), float(values.std(ddof=1) / math.sqrt(len(values))))


def _keys(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.bit_generator.random_raw(n)
