"""Recursive and ambiguous grammars, empty and unit rules, cycles: held against closed forms and brute force.

The brute force is the least fixed point of the rules as written, over all strings up to a length, by plain iteration.
"""

import itertools
import math
from collections import Counter, defaultdict

import mpmath
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from grammarlab.language import GrammarError, from_text, load, pcfg
from grammarlab.language.grammar import Nonterminal, parse_grammar
from grammarlab.language.lengths import draw
from grammarlab.language.pcfg import PCFG

Words = tuple[str, ...]

TIGHT = 1e-12
R1 = "S -> S S [0.25] | 'a' [0.75]"
R2 = "S -> '(' S ')' S [1/3] | [2/3]"
R3 = "S -> S 'a' [.5] | 'a' [.5]"
R6 = "E -> E '+' E [.4] | 'n' [.6]"
TANGLED = """
S -> S [.3] | A [.2] | 'a' [.1] | S E S [.2] | 'b' E [.2]
A -> S [.5] | 'a' [.5]
E -> [.5] | 'e' [.25] | E E [.25]
"""


def by_iteration(text: str, start: str, longest: int) -> dict[Words, float]:
    """Probability of every string of at most `longest` words: the rules, applied until nothing changes."""
    grammar = parse_grammar(text, start)
    known: dict[Nonterminal, dict[Words, float]] = {left: {} for left in grammar.rules}
    for _ in range(2_000):
        new: dict[Nonterminal, dict[Words, float]] = {}
        for left, rules in grammar.rules.items():
            total: dict[Words, float] = defaultdict(float)
            for rule in rules:
                parts: dict[Words, float] = {(): rule.probability}
                for symbol in rule.right:
                    more = {(symbol,): 1.0} if isinstance(symbol, str) else known[symbol]
                    joined: dict[Words, float] = defaultdict(float)
                    for (a, p), (b, q) in itertools.product(parts.items(), more.items()):
                        if len(a) + len(b) <= longest:
                            joined[a + b] += p * q
                    parts = joined
                for words, p in parts.items():
                    total[words] += p
            new[left] = dict(total)
        gap = max((abs(new[x].get(w, 0) - known[x].get(w, 0)) for x in new for w in new[x]), default=0.0)
        known = new
        if gap < 1e-17:
            return known[grammar.start]
    raise AssertionError("the iteration did not settle")


def engine(text: str, start: str = "S") -> PCFG:
    return PCFG(parse_grammar(text, start), table_limit=0)


def prob(language: PCFG, *texts: str) -> list[float]:
    return np.exp(language.log_prob([tuple(text) for text in texts])).tolist()


# ---- closed forms --------------------------------------------------------------------------------------------------


def test_words_of_one_letter() -> None:
    language = engine(R1)
    assert prob(language, "a", "aa", "aaa", "aaaa") == pytest.approx([3 / 4, 9 / 64, 27 / 512, 405 / 16384], rel=TIGHT)
    assert language.log_prob([("a",) * 100])[0] / math.log(10) == pytest.approx(-15.740815, abs=1e-6)
    prefixes = 1 - language.next_token_probs(tuple("aaa"))[:, -1]  # P(goes on | prefix)
    assert np.cumprod(prefixes)[:3].tolist() == pytest.approx([1, 1 / 4, 7 / 64], rel=TIGHT)
    assert language.mean_length().value == pytest.approx(1.5, rel=TIGHT)
    assert language.derivation_entropy() / math.log(2) == pytest.approx(1.622556, abs=1e-6)
    entropy = language.entropy()
    assert entropy.stderr is not None
    assert abs(entropy.value / math.log(2) - 1.303984) < 4 * entropy.stderr / math.log(2)


def test_brackets() -> None:
    language = engine(R2)
    assert prob(language, "", "()", "()()", "(())") == pytest.approx([2 / 3, 4 / 27, 8 / 243, 8 / 243], rel=TIGHT)
    rows = language.next_token_probs(tuple("(()"))
    assert language.terminals == ("(", ")")
    assert rows.tolist() == [pytest.approx(row, abs=TIGHT) for row in ([1 / 3, 0, 2 / 3], *[[1 / 3, 2 / 3, 0]] * 3)]
    assert language.entropy().exact
    assert language.entropy().value / math.log(2) == pytest.approx(2.754888, abs=1e-6)
    assert language.entropy().value / (language.mean_length().value + 1) == pytest.approx(0.636514, abs=1e-6)


def test_a_left_recursive_grammar() -> None:
    language = engine(R3)
    assert prob(language, "a", "aa", "aaaaa") == pytest.approx([1 / 2, 1 / 4, 1 / 32], rel=TIGHT)
    assert language.entropy().exact
    assert language.entropy().value == pytest.approx(2 * math.log(2), rel=TIGHT)
    assert language.mean_length().value == pytest.approx(2, rel=TIGHT)
    assert language.length_variance() == pytest.approx(2, rel=TIGHT)  # geometric


def test_sums_of_terms() -> None:
    language = engine(R6, "E")
    assert prob(language, "n", "n+n", "n+n+n", "n+n+n+n") == pytest.approx(
        [3 / 5, 18 / 125, 216 / 3125, 648 / 15625], rel=TIGHT
    )
    assert language.log_prob([tuple("+".join("n" * 50))])[0] / math.log(10) == pytest.approx(-3.884309, abs=1e-6)


@pytest.mark.parametrize("p, mass", [(0.25, 1), (0.5, 1), (0.6, 2 / 3), (0.75, 1 / 3)])
def test_a_grammar_that_loses_mass_is_refused_with_it_unless_allowed(p: float, mass: float) -> None:
    text = "S -> S S [p] | 'a' [1-p]"
    if mass == 1:
        assert from_text(text, "S", parameters={"p": p}).mass == 1
        return
    with pytest.raises(GrammarError, match=f"^improper grammar: .* ends with probability {mass:.6g} only"):
        from_text(text, "S", parameters={"p": p})
    given_that_it_ends = from_text(text, "S", parameters={"p": p}, allow_improper=True)
    assert given_that_it_ends.mass == pytest.approx(mass, rel=TIGHT)
    # Given that it ends, a supercritical branching process is the one with the two probabilities exchanged.
    assert prob(given_that_it_ends, "a", "aa") == pytest.approx([p, (1 - p) * p * p], rel=TIGHT)


def test_a_critical_grammar_is_proper_and_has_no_mean() -> None:
    language = from_text("S -> S S [.5] | 'a' [.5]", "S")
    assert language.mean_length().value == math.inf
    assert prob(language, "a", "aa", "aaa") == pytest.approx([1 / 2, 1 / 8, 1 / 16], rel=TIGHT)


# From the start symbols N10 and N13: sentences, entropy, entropy of a derivation.
CFG3 = [
    ("cfg3b", "N10", 16, 2.772589, 2.772589),
    ("cfg3b", "N13", 512, 6.238325, 6.238325),
    ("cfg3i", "N10", 12, 2.426015, 2.426015),
    ("cfg3i", "N13", 2464, 7.093928, 7.104759),
    ("cfg3h", "N10", 33, 3.391731, 3.391731),
    ("cfg3h", "N13", 2592, 7.659711, 7.659711),
]


@pytest.mark.parametrize("name, start, size, entropy, derivations", CFG3)
def test_the_small_tasks_of_cfg3(name: str, start: str, size: int, entropy: float, derivations: float) -> None:
    language = load(name, start=start)
    assert language.size() == size
    assert language.entropy().exact
    assert language.entropy().value == pytest.approx(entropy, abs=1e-6)
    assert language.derivation_entropy() == pytest.approx(derivations, abs=1e-6)


@pytest.mark.parametrize(
    "name, length, derivations",
    [
        ("cfg3b", 275.625, 117.315),
        ("cfg3i", 308.094, 129.575),
        ("cfg3h", 236.384, 141.941),
        ("cfg3g", 252.433, 187.094),
        ("cfg3f", 249.860, 186.221),
    ],
)
def test_the_sums_of_cfg3(name: str, length: float, derivations: float) -> None:
    language = load(name)
    assert language.mean_length().value == pytest.approx(length, abs=5e-4)
    assert language.derivation_entropy() == pytest.approx(derivations, abs=5e-4)
    law = language.length_law(int(language.max_length()))
    assert math.fsum(law) == pytest.approx(1, abs=TIGHT)
    assert np.arange(len(law)) @ law == pytest.approx(language.mean_length().value, rel=TIGHT)
    variance = (np.arange(len(law)) - np.arange(len(law)) @ law) ** 2 @ law
    assert variance == pytest.approx(language.length_variance(), rel=1e-10)


# ---- brute force ---------------------------------------------------------------------------------------------------

LONGEST = 6


@pytest.mark.parametrize("text", [R1, R2, R3, TANGLED], ids=["R1", "R2", "R3", "tangled"])
def test_every_string_and_every_limit(text: str) -> None:
    check_against_iteration(text, "S")


@st.composite
def random_grammars(draw: st.DrawFn) -> str:
    symbols = ["S", "A", "B"][: draw(st.integers(1, 3))]
    lines = []
    for left in symbols:
        sides = st.lists(st.sampled_from([*symbols, "'a'", "'b'"]), max_size=3)
        rights = draw(st.lists(sides.map(tuple), min_size=1, max_size=4, unique=True))
        weights = [draw(st.integers(1, 5)) for _ in rights]
        options = [f"{' '.join(r)} [{w}/{sum(weights)}]" for r, w in zip(rights, weights, strict=True)]
        lines.append(f"{left} -> {' | '.join(options)}")
    return "\n".join(lines)


@pytest.mark.filterwarnings("ignore:unreachable from")
@settings(max_examples=150, deadline=None, derandomize=True)
@given(text=random_grammars())
def test_random_grammars_as_by_iteration(text: str) -> None:
    try:
        language = engine(text)
    except GrammarError:
        assume(False)
    assume(language.sums.spectral_radius < 0.95)  # else the iteration takes for ever
    check_against_iteration(text, "S", longest=4)


def check_against_iteration(text: str, start: str, longest: int = LONGEST) -> None:
    language = engine(text, start)
    true = by_iteration(text, start, longest)
    strings = [s for n in range(longest + 1) for s in itertools.product(language.terminals, repeat=n)]
    assert np.exp(language.log_prob(strings)) == pytest.approx([true.get(s, 0.0) for s in strings], rel=1e-11, abs=0)
    law = language.length_law(longest)
    for n in range(longest + 1):
        assert law[n] == pytest.approx(math.fsum(p for s, p in true.items() if len(s) == n), rel=1e-11, abs=1e-300)
    for string in strings[:: max(1, len(strings) // 40)]:
        rows = language.next_token_probs(string)
        possible = rows.any(axis=1)
        assert rows[possible].sum(axis=1) == pytest.approx(np.ones(possible.sum()), abs=TIGHT)
        assert (np.diff(possible.astype(int)) <= 0).all()  # nothing follows what is impossible
        steps = [rows[k, language.terminals.index(word)] for k, word in enumerate(string)]
        assert math.prod([*steps, rows[-1, -1]]) == pytest.approx(true.get(string, 0.0), rel=1e-11, abs=0)

    kept = math.fsum(true.values())
    if kept == 0 or language.max_length() <= longest:
        return
    short = language.truncated(longest)
    assert short.mass == pytest.approx(kept, rel=1e-11)
    prefix: dict[Words, float] = defaultdict(float)
    for s, p in true.items():
        for n in range(len(s) + 1):
            prefix[s[:n]] += p
    for string in sorted(true, key=lambda s: (-len(s), s))[:10]:
        rows = short.next_token_probs(string)
        for k in range(len(string) + 1):
            want = [prefix[(*string[:k], word)] for word in short.terminals] + [true.get(string[:k], 0.0)]
            assert rows[k] == pytest.approx(np.array(want) / prefix[string[:k]], rel=1e-10, abs=1e-15)
    given = {s: p / kept for s, p in true.items()}
    assert dict(PCFG.enumerate(short)) == pytest.approx(given, rel=1e-10)
    if short.unambiguous:
        entropy = -math.fsum(p * math.log(p) for p in given.values())
        assert short.derivation_entropy() == pytest.approx(entropy, rel=1e-10, abs=1e-12)


# ---- drawing -------------------------------------------------------------------------------------------------------


def test_the_same_sentences_whatever_the_batch() -> None:
    language = load("arithmetic")
    together = language.sample(12, np.random.default_rng(7))
    rng = np.random.default_rng(7)
    assert together == [s for n in (1, 5, 4, 2) for s in language.sample(n, rng)]
    assert together != language.sample(12, np.random.default_rng(8))


@pytest.mark.parametrize("text", [R2, TANGLED], ids=["R2", "tangled"])
def test_sentences_come_with_their_probabilities_with_a_limit_and_without(text: str) -> None:
    """Pearson's chi-square against the exact probabilities; a p-value below 1e-4 fails, and the seeds are fixed."""
    n, longest = 20_000, 4
    true = by_iteration(text, "S", longest)
    free = engine(text)
    short = free.truncated(longest)
    assert short._bounded is not None
    keys = np.random.default_rng(3).bit_generator.random_raw(n)
    bounded = short._bounded
    within = draw(bounded._series, bounded._laws, np.cumsum(bounded.law), keys)
    ways = {
        "no limit": (free.sample(n, np.random.default_rng(1)), 1.0),
        "drawn again": (short.sample(n, np.random.default_rng(2)), short.mass),
        "drawn within": (_sentences(short, *within), short.mass),
    }
    for name, (drawn, mass) in ways.items():
        counts = Counter(drawn)
        expected = {s: n * p / mass for s, p in true.items() if n * p / mass > 5}
        rest = n - sum(expected.values())
        observed = [counts[s] for s in expected] + [n - sum(counts[s] for s in expected)]
        wanted = [*expected.values(), rest]
        if rest < 5:
            observed, wanted = observed[:-1], wanted[:-1]
        statistic = sum((o - e) ** 2 / e for o, e in zip(observed, wanted, strict=True))
        p_value = mpmath.gammainc((len(wanted) - 1) / 2, statistic / 2, regularized=True)
        assert p_value > 1e-4, name
        if mass < 1:
            assert all(s in true for s in counts)


def _sentences(language: PCFG, words: np.ndarray, ends: np.ndarray) -> list[Words]:
    return [tuple(language.terminals[i] for i in part) for part in np.split(words, ends[:-1])]


def test_a_limit_that_few_sentences_meet_is_met_exactly() -> None:
    language = load("cfg3f").truncated(90)  # so small a share that drawing again would take for ever
    assert language.mass < 1e-4
    drawn = language.sample(20, np.random.default_rng(0))
    assert max(map(len, drawn)) <= 90
    assert np.isfinite(language.log_prob(drawn)).all()


# ---- hard cases ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, sentence, log_prob",
    [
        ("S -> 'a' S [.5] | 'a' [.5]", ("a",) * 5_000, 5_000 * math.log(0.5)),
        ("S -> S 'a' [.5] | 'a' [.5]", ("a",) * 5_000, 5_000 * math.log(0.5)),
        (R2, ("(",) * 2_500 + (")",) * 2_500, 2_500 * math.log(1 / 3) + 2_501 * math.log(2 / 3)),
        (R2, ("(", ")") * 2_500, 2_500 * math.log(1 / 3) + 2_501 * math.log(2 / 3)),
    ],
    ids=["right", "left", "nested", "pairs"],
)
def test_5000_words_do_not_underflow(text: str, sentence: Words, log_prob: float) -> None:
    language = engine(text)
    assert language.log_prob([sentence])[0] == pytest.approx(log_prob, rel=1e-11)
    assert language.next_token_probs(sentence).sum(axis=1) == pytest.approx(np.ones(5_001), abs=TIGHT)


def test_a_hypothesis_that_has_become_hopeless_and_turns_out_true() -> None:
    """After 2000 words A is 9^2000 times likelier than B, beyond any float; the last word shows that it was B."""
    language = engine("S -> A 'x' [.5] | B 'y' [.5]\nA -> 'a' A [.9] | [.1]\nB -> 'a' B [.1] | [.9]")
    sentence = (*("a",) * 2_000, "y")
    want = math.log(0.5) + 2_000 * math.log(0.1) + math.log(0.9)
    assert language.log_prob([sentence])[0] == pytest.approx(want, rel=1e-11)
    rows = language.next_token_probs(sentence)
    assert rows[-1].tolist() == pytest.approx([0, 0, 0, 1])
    assert rows[2_000, language.terminals.index("x")] == pytest.approx(0.1, rel=1e-9)


def test_unknown_words_and_impossible_prefixes_give_minus_infinity_and_rows_of_0() -> None:
    language = engine(R2)
    assert language.log_prob([("x",), (")",), ("(", "x", ")"), ("(",)]).tolist() == [-math.inf] * 4
    rows = language.next_token_probs(("(", "x", ")"))
    assert rows[:2].any(axis=1).all()
    assert not rows[2:].any()


# ---- parameters ----------------------------------------------------------------------------------------------------


def test_a_probability_may_be_an_expression_of_parameters() -> None:
    language = from_text("S -> 'a' S [p] | 'b' [(1-p)/2] | 'c' [0.5*(1 - p)]", "S", parameters={"p": 0.25})
    assert prob(language, "b", "c", "ab") == pytest.approx([3 / 8, 3 / 8, 3 / 32], rel=TIGHT)


@pytest.mark.parametrize(
    "text, parameters, message",
    [
        ("S -> 'a' [q] | 'b' [1-q]", {"p": 0.5}, r"\[q\] is no probability; .*\(q: parameters are p\)"),
        ("S -> 'a' [.5] | 'b' [.5]", {"p": 0.5}, "no probability names the parameter p"),
        ("S -> 'a' [p] | 'b' [1-p]", {"p": 1.5}, "probability 1.5 of `S -> 'a'` is not between 0 and 1"),
        ("S -> 'a' [p] | 'b' [1/p]", {"p": 0.0}, r"\[1/p\] is no probability"),
        ("S -> 'a' [__import__('os')] | 'b'", {}, r"is no probability"),
        ("S -> 'a' [p**2] | 'b' [1-p]", {"p": 0.5}, r"\[p\*\*2\] is no probability"),
    ],
)
def test_wrong_parameters_are_named(text: str, parameters: dict[str, float], message: str) -> None:
    with pytest.raises(GrammarError, match=message):
        from_text(text, "S", parameters=parameters)


def test_a_language_of_the_library_with_other_parameters() -> None:
    assert load("tail", p=0.75).mean_length().value == pytest.approx(4, rel=TIGHT)
    assert len(load("dyck", k=5, p=0.2).terminals) == 10
    with pytest.raises(ValueError, match="tail has no parameter q; it has p"):
        load("tail", q=0.5)
    with pytest.raises(ValueError, match=r"language\.parameters\.k=0: must be at least 1"):
        load("dyck", k=0)


# ---- the most probable, how many, prefixes ---------------------------------------------------------------------------


def test_the_most_probable_sentences_of_an_infinite_language() -> None:
    """Of tail with p = 1/2 the n-th has n words and probability 2^-n."""
    language = load("tail")
    assert language.enumerate(count=5) == [(("a",) * n, pytest.approx(2.0**-n, rel=TIGHT)) for n in range(1, 6)]
    assert len(language.enumerate(mass=0.99)) == 7  # 1 - 2^-7 > 0.99 > 1 - 2^-6
    assert language.enumerate(count=0) == []
    with pytest.raises(ValueError, match=r"^the language has infinitely many sentences"):
        language.enumerate()
    with pytest.raises(
        ValueError, match=r"^2 sentences of probability 0\.75 are found within limit=3 steps; a larger limit"
    ):
        language.enumerate(mass=0.99, limit=3)
    for wrong in ({"count": -1}, {"mass": 1.0}, {"mass": math.nan}):
        with pytest.raises(ValueError, match="must be at least 0"):
            language.enumerate(**wrong)  # type: ignore[arg-type]


def test_the_most_probable_sentences_are_those_of_the_whole_list() -> None:
    true = by_iteration(TANGLED, "S", LONGEST)
    best = engine(TANGLED).enumerate(count=20)
    assert [p for _, p in best] == pytest.approx(sorted(true.values(), reverse=True)[:20], rel=1e-11)
    assert {s: p for s, p in best} == pytest.approx({s: true[s] for s, _ in best}, rel=1e-11)


def test_the_number_of_sentences_of_each_length() -> None:
    catalan = [math.comb(2 * n, n) // (n + 1) for n in range(41)]
    assert load("dyck1").sizes(80) == [catalan[n // 2] if n % 2 == 0 else 0 for n in range(81)]  # beyond any float
    assert load("palindromes").sizes(7) == [1, 2, 2, 4, 4, 8, 8, 16]
    assert load("double").sizes(6) == [0, 1, 1, 1, 1, 1, 1]  # ambiguous: written out
    assert load("captions").sizes(7) == [0, 0, 0, 0, 0, 0, 8, 0]
    true = by_iteration(TANGLED, "S", 5)
    assert engine(TANGLED).sizes(5) == [sum(len(s) == n for s in true) for n in range(6)]
    assert load("dyck1").truncated(4).sizes(6) == [1, 0, 1, 0, 2, 0, 0]


def test_the_probability_of_a_prefix() -> None:
    language = engine(R2)
    wanted = {"": 1, "(": 1 / 3, "((": 1 / 9, "()": 2 / 9, "()(": 2 / 27, "(()": 2 / 27, ")": 0, "x": 0}
    for prefix, p in wanted.items():
        assert math.exp(language.prefix_log_prob(tuple(prefix))) == pytest.approx(p, rel=TIGHT)


# ---- what others would not survive -----------------------------------------------------------------------------------


def test_nothing_but_the_empty_sentence_by_a_critical_branching() -> None:
    language = engine("S -> S S [.5] | [.5]")
    assert language.log_prob([(), ("a",)]).tolist() == [0, -math.inf]
    assert language.mean_length().value == 0
    assert language.length_law(3).tolist() == [1, 0, 0, 0]
    assert (language.size(), language.enumerate(count=3)) == (1, [((), 1.0)])
    assert language.truncated(0) is language


def test_a_limit_with_more_derivations_than_a_float_holds() -> None:
    short = load("dyck2").truncated(1_500)
    assert short.entropy().exact
    assert short.sizes(4) == [1, 0, 2, 0, 8]
    with pytest.raises(ValueError, match="more than 1000000000000000 derivations"):
        short.enumerate()
    ambiguous = load("double").truncated(1_200)
    assert ambiguous.mass == pytest.approx(1, abs=1e-9)
    assert ambiguous.mean_length().value == pytest.approx(1.5, rel=1e-6)


@pytest.mark.parametrize("longest", [4, 12])
def test_the_entropy_given_a_limit_is_met_by_its_estimate(longest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of words of one letter: that of the law of length."""
    assert engine(R1).truncated(longest).entropy().exact
    monkeypatch.setattr(pcfg, "ENUMERATION_LIMIT", 0)
    short = engine(R1).truncated(longest)
    law = short.length_law(longest)
    exact = -math.fsum(p * math.log(p) for p in law if p > 0)
    entropy = short.entropy()
    assert entropy.stderr is not None
    assert abs(entropy.value - exact) < 4 * entropy.stderr


def test_the_entropy_is_exact_where_the_sentences_can_be_written_out() -> None:
    """Ambiguous, and with more derivations than are answered from a table."""
    language = from_text("S -> A A A A\nA -> " + " | ".join(f"'{word}'" for word in "abcdefghijk") + " | 'a' 'b'", "S")
    assert language._small is None
    entropy, derivations = language.entropy(), language.derivation_entropy()
    assert entropy.exact
    assert derivations == pytest.approx(4 * math.log(12), rel=TIGHT)
    parts = [*"abcdefghijk", "ab"]
    strings = Counter("".join(four) for four in itertools.product(parts, repeat=4))
    wanted = -math.fsum(n / 12**4 * math.log(n / 12**4) for n in strings.values())
    assert entropy.value == pytest.approx(wanted, rel=TIGHT)
    assert wanted < derivations


def test_the_entropy_of_a_critical_ambiguous_grammar_is_out_of_reach() -> None:
    critical = engine("S -> S S [.5] | 'a' [.5]")
    with pytest.raises(ValueError, match="the entropy of a sentence is out of reach"):
        critical.entropy()
    assert math.isfinite(critical.truncated(20).entropy().value)


def test_a_cycle_of_units_leaves_a_finite_language_finite() -> None:
    language = from_text("S -> S [.3] | A [.2] | 'a' [.5]\nA -> S [.5] | 'b' [.5]", "S")
    # S is a with probability s and b with 1 - s, A likewise: s = .3 s + .2 t + .5, t = .5 s.
    assert dict(language.enumerate()) == pytest.approx({("a",): 5 / 6, ("b",): 1 / 6}, rel=TIGHT)
    assert language.size() == 2
    assert language.entropy().exact


def test_a_rule_of_2000_words_is_written_out() -> None:
    language = from_text("S -> " + "'a' " * 2_000, "S")
    assert language.enumerate() == [(("a",) * 2_000, 1.0)]
    assert str(language.entropy().value) == "0.0"


@pytest.mark.parametrize("length", [-1, 2.5])
def test_a_length_that_is_none_is_refused(length: float) -> None:
    language = load("dyck1")
    for ask in (language.truncated, language.length_law, language.sizes):
        with pytest.raises(ValueError, match="a length must be at least 0, and whole"):
            ask(length)  # type: ignore[operator]


@pytest.mark.parametrize("p", [math.nan, math.inf])
def test_a_parameter_that_is_no_number_is_refused(p: float) -> None:
    with pytest.raises(GrammarError, match=f"^parameter p={p}: must be a finite number$"):
        load("dyck1", p=p)


def test_chains_and_towers_of_symbols_take_no_time() -> None:
    chain = "\n".join(f"N{i} -> N{i + 1} [.5] | 'a' [.5]" for i in range(1_000)) + "\nN1000 -> 'b'"
    assert math.exp(from_text(chain, "N0").log_prob([("a",)])[0]) == pytest.approx(1, abs=TIGHT)
    tower = "\n".join(f"N{i} -> N{i + 1} N{i + 1}" for i in range(60)) + "\nN60 -> 'a'"
    with pytest.raises(ValueError, match=f"the shortest has {2**60}$"):
        from_text(tower, "N0").truncated(5)


def test_a_nearly_critical_ambiguous_grammar_says_that_its_entropy_is_out_of_reach() -> None:
    with pytest.raises(ValueError, match="have more than 2000 words"):
        load("double", p=0.49).entropy()
