"""Every probability of a language, held against mathematics, brute force and nltk.

A grammar is written here as `Rules`, from which an oracle derives every sentence with exact fractions, one derivation
after the other. The code has two ways to its answers, and all laws hold for both: the table of all sentences, and for
languages that are too large for that the compiled engine.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction

import nltk
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from nltk.parse.pchart import InsideChartParser

from grammarlab.language import NotEnumerableError, Quantity, SentenceTable, from_text, load, pcfg
from grammarlab.language.grammar import parse_grammar
from grammarlab.language.pcfg import PCFG

Words = tuple[str, ...]
Rules = dict[str, list[tuple[Words, Fraction]]]

TIGHT = 1e-12


# The oracle


def derive_all(rules: Rules, start: str) -> dict[Words, Fraction]:
    """Each sentence with its probability: every derivation is written out, by rewriting the leftmost symbol."""
    totals: dict[Words, Fraction] = {}
    forms: list[tuple[Words, Fraction]] = [((start,), Fraction(1))]
    while forms:
        form, probability = forms.pop()
        at = next((index for index, symbol in enumerate(form) if symbol in rules), None)
        if at is None:
            totals[form] = totals.get(form, Fraction(0)) + probability
        else:
            forms += [(form[:at] + right + form[at + 1 :], probability * share) for right, share in rules[form[at]]]
    return totals


def prefix_mass(sentences: dict[Words, Fraction], prefix: Words) -> Fraction:
    return sum((p for words, p in sentences.items() if words[: len(prefix)] == prefix), Fraction(0))


def next_mass(sentences: dict[Words, Fraction], terminals: Words, prefix: Words) -> list[Fraction]:
    """P(a sentence begins with the prefix and then word v) for each v, then P(it is just the prefix)."""
    return [*(prefix_mass(sentences, (*prefix, v)) for v in terminals), sentences.get(prefix, Fraction(0))]


def next_probs(sentences: dict[Words, Fraction], terminals: Words, sentence: Words) -> np.ndarray:
    rows = []
    for length in range(len(sentence) + 1):
        mass = next_mass(sentences, terminals, sentence[:length])
        total = sum(mass)
        rows.append([float(m / total) if total else 0.0 for m in mass])
    return np.array(rows)


def entropy_of(probabilities: Iterable[Fraction]) -> float:
    return -math.fsum(float(p) * math.log(p) for p in probabilities)


def written(rules: Rules) -> str:
    """In the notation, with exact fractions."""
    return "\n".join(
        f"{left} -> " + " | ".join(f"{' '.join(s if s in rules else repr(s) for s in r)} [{p}]" for r, p in options)
        for left, options in rules.items()
    )


def strings(words: Sequence[str], longest: int) -> list[Words]:
    return [s for length in range(longest + 1) for s in itertools.product(words, repeat=length)]


# Both ways to the answers

LoadText = Callable[[str, str], PCFG]


def by_engine(text: str, start: str) -> PCFG:
    """As if the language were too large to be written out."""
    return PCFG(parse_grammar(text, start), table_limit=0)


BOTH_WAYS = pytest.mark.parametrize("build", [from_text, by_engine], ids=["table", "engine"])


# Examples: sentences of several lengths and probabilities, ambiguous, with empty rules and symbols that are shared

EXAMPLES: dict[str, Rules] = {
    "lengths": {
        "S": [(("a", "X"), Fraction(1, 2)), (("b",), Fraction(1, 3)), (("X", "X"), Fraction(1, 6))],
        "X": [(("c",), Fraction(3, 4)), (("d", "c"), Fraction(1, 4))],
    },
    "ambiguous": {
        "S": [(("A", "A"), Fraction(1, 4)), (("B", "a"), Fraction(1, 2)), (("a", "B"), Fraction(1, 4))],
        "A": [(("a",), Fraction(1, 3)), (("a", "a"), Fraction(2, 3))],
        "B": [(("a", "b"), Fraction(1, 5)), (("A",), Fraction(4, 5))],
    },
    "empty rules": {
        "S": [(("A", "B", "A"), Fraction(2, 3)), (("B", "c", "B"), Fraction(1, 4)), ((), Fraction(1, 12))],
        "A": [(("a",), Fraction(1, 2)), ((), Fraction(1, 2))],
        "B": [(("A", "A"), Fraction(3, 5)), (("b", "A"), Fraction(1, 5)), ((), Fraction(1, 5))],
    },
    "nested": {  # the dangling modifier: w n p n p n has two parses
        "S": [(("V", "N2"), Fraction(2, 3)), (("V", "N1", "P"), Fraction(1, 3))],
        "V": [(("w",), Fraction(1))],
        "N2": [(("N1", "P"), Fraction(2, 5)), (("N1",), Fraction(3, 5))],
        "N1": [(("n", "P"), Fraction(1, 4)), (("n",), Fraction(3, 4))],
        "P": [(("p", "n"), Fraction(1, 7)), (("p",), Fraction(6, 7))],
    },
    "nothing": {"S": [((), Fraction(1))]},
}
EACH_EXAMPLE = pytest.mark.parametrize("rules", EXAMPLES.values(), ids=EXAMPLES.keys())


@st.composite
def random_rules(draw: st.DrawFn) -> Rules:
    """A grammar whose rules use later symbols alone: ambiguous, with empty rules, with shared symbols, as it comes."""
    names = ("N0", "N1", "N2", "N3")[: draw(st.integers(2, 4))]
    rules: Rules = {}
    for index, name in enumerate(names):
        later = names[index + 1 :]
        right = st.lists(st.sampled_from(("x", *later, "y", *later)), max_size=3).map(tuple)
        rights = draw(st.lists(right, min_size=1, max_size=3, unique=True))
        weights = draw(st.lists(st.integers(1, 5), min_size=len(rights), max_size=len(rights)))
        rules[name] = [(r, Fraction(w, sum(weights))) for r, w in zip(rights, weights, strict=True)]
    used = {"N0"}
    for name in names:  # in order: whoever uses a symbol stands before it
        used |= {s for right, _ in rules[name] for s in right} if name in used else set()
    rules = {name: options for name, options in rules.items() if name in used}

    derivations: dict[str, int] = {}
    for name in reversed(rules):
        derivations[name] = sum(math.prod(derivations.get(s, 1) for s in right) for right, _ in rules[name])
    assume(derivations["N0"] <= 200)
    return rules


# Fixed examples, no stored failures, no clock.
RANDOM = settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=100,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow, HealthCheck.data_too_large],
)


# The captions: everything is known by hand

LN2 = math.log(2)
CAPTIONS = [
    tuple(f"a photo of a {size} {shape}".split()) for size in ("large", "small") for shape in ("plus", "circle")
] + [tuple(f"a {size} {shape} in the photo".split()) for size in ("large", "small") for shape in ("plus", "circle")]


def test_captions_are_8_sentences_of_an_eighth() -> None:
    captions = load("captions")
    assert captions.enumerate() == [(caption, 0.125) for caption in CAPTIONS]
    assert captions.size() == 8
    assert captions.log_prob(CAPTIONS).tolist() == pytest.approx([-3 * LN2] * 8, rel=TIGHT)


def test_captions_have_an_entropy_of_3_bits_and_6_words() -> None:
    captions = load("captions")
    assert captions.entropy() == Quantity(pytest.approx(3 * LN2, rel=TIGHT))
    assert captions.mean_length() == Quantity(pytest.approx(6, rel=TIGHT))
    assert captions.max_length() == 6


def test_captions_surprise_at_these_places() -> None:
    """The choice of style and, for one style, of size comes in the second word; the end is never a surprise."""
    captions = load("captions")
    by_position = np.zeros(7)
    for caption in CAPTIONS:
        for position, row in enumerate(captions.next_token_probs(caption)):
            by_position[position] += 0.125 * -math.fsum(p * math.log(p) for p in row if p > 0)
    assert by_position == pytest.approx(np.array([0, 1.5, 0.5, 0, 0.5, 0.5, 0]) * LN2, abs=TIGHT)


def test_captions_second_word() -> None:
    captions = load("captions")
    row = captions.next_token_probs(("a",))[1]
    follow = {word: p for word, p in zip((*captions.terminals, "end"), row, strict=True) if p > 0}
    assert follow == {"photo": 0.5, "large": 0.25, "small": 0.25}


# Recursive grammars cut off so deep that short sentences do not notice: values of the whole language


def unrolled(rule: str, depth: int, last: str) -> str:
    """`rule` with S written as a symbol for each depth."""
    lines = [f"S{d} -> " + rule.replace("S", f"S{d - 1}") for d in range(depth, 0, -1)]
    return "\n".join([*lines, f"S0 -> {last}"])


@BOTH_WAYS
def test_sums_of_terms_have_the_probabilities_of_all_their_parses(build: LoadText) -> None:
    language = build(unrolled("S '+' S [.4] | 'n' [.6]", 4, "'n'"), "S4")
    sums = [tuple("+".join("n" * terms)) for terms in (1, 2, 3, 4)]
    want = [3 / 5, 18 / 125, 216 / 3125, 648 / 15625]
    assert np.exp(language.log_prob(sums)).tolist() == pytest.approx(want, rel=TIGHT)


@BOTH_WAYS
def test_words_of_one_letter_have_the_probabilities_of_all_their_parses(build: LoadText) -> None:
    language = build(unrolled("S S [1/4] | 'a' [3/4]", 4, "'a'"), "S4")
    want = [3 / 4, 9 / 64, 27 / 512, 405 / 16384]
    assert np.exp(language.log_prob([("a",) * n for n in (1, 2, 3, 4)])).tolist() == pytest.approx(want, rel=TIGHT)


@BOTH_WAYS
def test_brackets_have_the_probabilities_and_prefixes_of_dyck_words(build: LoadText) -> None:
    language = build(unrolled("'(' S ')' S [1/3] | [2/3]", 4, ""), "S4")
    assert language.terminals == ("(", ")")
    words = [(), tuple("()"), tuple("(())"), tuple("()()")]
    assert np.exp(language.log_prob(words)).tolist() == pytest.approx([2 / 3, 4 / 27, 8 / 243, 8 / 243], rel=TIGHT)
    # P("(") = 1/3, P("((") = 1/9, P("()") = 2/9, P("()(") = P("(()") = 2/27
    opening, after_one, after_two = language.next_token_probs(tuple("(("))
    assert opening.tolist() == pytest.approx([1 / 3, 0, 2 / 3], abs=TIGHT)
    assert after_one.tolist() == pytest.approx([1 / 3, 2 / 3, 0], abs=TIGHT)
    assert after_two.tolist() == pytest.approx([1 / 3, 2 / 3, 0], abs=TIGHT)
    assert language.next_token_probs(tuple("()"))[2].tolist() == pytest.approx([1 / 3, 0, 2 / 3], abs=TIGHT)
    assert not language.next_token_probs((")",))[1].any()


def test_a_sentence_of_many_parses_takes_no_more_than_a_chart() -> None:
    """A sum of 20 terms has Catalan(19) = 1 767 263 190 parses; the language has more derivations than atoms."""
    terms = 20
    language = from_text(unrolled("S '+' S [.4] | 'n' [.6]", terms + 1, "'n'"), f"S{terms + 1}")
    catalan = math.comb(2 * terms - 2, terms - 1) / terms
    want = math.log(catalan) + (terms - 1) * math.log(0.4) + terms * math.log(0.6)
    assert language.log_prob([tuple("+".join("n" * terms))])[0] == pytest.approx(want, rel=TIGHT)


def test_a_rule_of_many_symbols_that_may_be_empty_takes_no_more_than_a_chart() -> None:
    """40 coins: the number of heads is binomial, and C(40, 20) ways lead to 20 of them."""
    coins, heads = 40, 20
    language = by_engine("S -> " + "A " * coins + "\nA -> 'a' |", "S")
    share = [math.comb(coins, k) / 2**coins for k in range(coins + 1)]
    sentence = ("a",) * heads
    assert language.log_prob([sentence])[0] == pytest.approx(math.log(share[heads]), rel=TIGHT)
    ends = [share[k] / math.fsum(share[k:]) for k in range(heads + 1)]
    assert language.next_token_probs(sentence)[:, -1].tolist() == pytest.approx(ends, rel=1e-10)


# Laws of every language, on both ways


@EACH_EXAMPLE
@BOTH_WAYS
def test_next_token_probabilities_are_distributions_and_chain_to_the_sentence(build: LoadText, rules: Rules) -> None:
    language = build(written(rules), "S")
    for sentence, probability in language.enumerate():
        rows = language.next_token_probs(sentence)
        assert rows.shape == (len(sentence) + 1, len(language.terminals) + 1)
        assert rows.sum(axis=1) == pytest.approx(np.ones(len(rows)), abs=TIGHT)
        assert (rows >= 0).all()
        columns = [language.terminals.index(word) for word in sentence] + [-1]
        chained = math.prod(row[column] for row, column in zip(rows, columns, strict=True))
        assert chained == pytest.approx(math.exp(language.log_prob([sentence])[0]), rel=TIGHT)
        assert chained == pytest.approx(probability, rel=TIGHT)


@EACH_EXAMPLE
@BOTH_WAYS
def test_what_is_no_sentence_has_no_probability_and_nothing_follows_an_impossible_prefix(
    build: LoadText, rules: Rules
) -> None:
    language, true = build(written(rules), "S"), derive_all(rules, "S")
    alphabet = (*language.terminals, "unknown")
    outside = [s for s in strings(alphabet, 3) if s not in true]
    assert outside
    assert (language.log_prob(outside) == -np.inf).all()
    for string in outside:
        rows = language.next_token_probs(string)
        possible = [prefix_mass(true, string[:length]) > 0 for length in range(len(string) + 1)]
        assert rows.any(axis=1).tolist() == possible
        assert rows.sum(axis=1) == pytest.approx(np.array(possible, float), abs=TIGHT)


@EACH_EXAMPLE
@BOTH_WAYS
def test_enumeration_sums_to_1_most_probable_first(build: LoadText, rules: Rules) -> None:
    language, true = build(written(rules), "S"), derive_all(rules, "S")
    listed = language.enumerate()
    assert math.fsum(p for _, p in listed) == pytest.approx(1, abs=TIGHT)
    assert [p for _, p in listed] == sorted((p for _, p in listed), reverse=True)
    assert len(listed) == len(true) == language.size()
    assert dict(listed) == pytest.approx({s: float(p) for s, p in true.items()}, rel=TIGHT)


def test_equally_probable_sentences_are_listed_in_the_order_of_the_words() -> None:
    language = from_text("S -> 'z' T [1/2] | 'a' T [1/4] | 'a' [1/8] | [1/8]\nT -> 'm' | 'b'", "S")
    assert language.terminals == ("z", "m", "b", "a")
    assert [(" ".join(s), p) for s, p in language.enumerate()] == [
        ("z m", 0.25),
        ("z b", 0.25),
        ("", 0.125),
        ("a", 0.125),
        ("a m", 0.125),
        ("a b", 0.125),
    ]


@EACH_EXAMPLE
@BOTH_WAYS
def test_lengths_are_those_of_the_sentences(build: LoadText, rules: Rules) -> None:
    language, true = build(written(rules), "S"), derive_all(rules, "S")
    mean = sum(p * len(s) for s, p in true.items())
    assert language.mean_length() == Quantity(pytest.approx(float(mean), rel=TIGHT))
    assert language.max_length() == max(map(len, true))


@EACH_EXAMPLE
def test_the_entropy_of_a_small_language_is_exact(rules: Rules) -> None:
    entropy = from_text(written(rules), "S").entropy()
    assert entropy.exact and entropy.stderr is None
    assert entropy.value == pytest.approx(entropy_of(derive_all(rules, "S").values()), abs=TIGHT)


@BOTH_WAYS
def test_entropy_is_that_of_the_string_not_of_its_derivation(build: LoadText) -> None:
    """Four derivations of 1/4, three sentences of 1/4, 1/2, 1/4: 1.5 bits, not 2."""
    entropy = build("S -> A A\nA -> 'a' | 'a' 'a'", "S").entropy()
    assert entropy.value == pytest.approx(1.5 * LN2, abs=4 * (entropy.stderr or TIGHT))


def test_the_entropy_of_a_large_language_is_an_estimate_with_its_standard_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pcfg, "ENUMERATION_LIMIT", 0)
    rules = EXAMPLES["empty rules"]
    probabilities = derive_all(rules, "S").values()
    exact = entropy_of(probabilities)
    deviation = math.sqrt(math.fsum(float(p) * (-math.log(p) - exact) ** 2 for p in probabilities))
    plain = deviation / math.sqrt(pcfg.ESTIMATE_SAMPLES)  # error of the mean surprise of as many sentences
    entropy = by_engine(written(rules), "S").entropy()
    assert not entropy.exact
    assert 0 < entropy.stderr < plain
    assert 0 < abs(entropy.value - exact) < 4 * entropy.stderr
    assert by_engine(written(rules), "S").entropy() == entropy  # the same number whoever asks


@BOTH_WAYS
def test_many_sentences_are_scored_at_once_and_none_too(build: LoadText) -> None:
    language = build(written(EXAMPLES["lengths"]), "S")
    scores = language.log_prob([("b",), ("c",), ("a", "c")])
    assert scores.tolist() == pytest.approx([math.log(1 / 3), -math.inf, math.log(3 / 8)], rel=TIGHT)
    for none in (scores, language.log_prob([])):
        assert none.dtype == np.float64
    assert language.log_prob([]).shape == (0,)


# The table, the chart, brute force and nltk say the same


@given(rules=random_rules())
@RANDOM
def test_random_grammars_give_each_string_the_sum_over_its_derivations(rules: Rules) -> None:
    true = derive_all(rules, "N0")
    asked = list(dict.fromkeys([*true, *strings(("x", "y"), 4)]))
    want = [float(true.get(s, 0)) for s in asked]
    for build in (from_text, by_engine):
        got = np.exp(build(written(rules), "N0").log_prob(asked))
        assert got.tolist() == pytest.approx(want, rel=TIGHT, abs=0)


@given(rules=random_rules())
@RANDOM
def test_random_grammars_give_each_prefix_the_share_of_what_follows(rules: Rules) -> None:
    true = derive_all(rules, "N0")
    longest = sorted(true, key=len)[-5:]
    for build in (from_text, by_engine):
        language = build(written(rules), "N0")
        for sentence in [*longest, *strings(("x", "y"), 2)]:
            want = next_probs(true, language.terminals, sentence)
            assert language.next_token_probs(sentence) == pytest.approx(want, rel=TIGHT, abs=0)


@EACH_EXAMPLE
def test_the_chart_equals_the_table(rules: Rules) -> None:
    table, chart = from_text(written(rules), "S"), by_engine(written(rules), "S")
    sentences = [*(s for s, _ in table.enumerate()), *strings(table.terminals, 3)]
    assert chart.log_prob(sentences) == pytest.approx(table.log_prob(sentences), abs=TIGHT)
    for sentence in sentences:
        assert chart.next_token_probs(sentence) == pytest.approx(table.next_token_probs(sentence), abs=TIGHT)


@pytest.mark.parametrize("name", ["lengths", "ambiguous", "nested"])  # its parser takes no empty rules
def test_probabilities_are_those_of_the_inside_parser_of_nltk(name: str) -> None:
    parser = InsideChartParser(nltk.PCFG.fromstring(_in_decimals(EXAMPLES[name])))
    table, chart = (build(written(EXAMPLES[name]), "S") for build in (from_text, by_engine))
    parses = 0
    for sentence, _ in table.enumerate():
        trees = list(parser.parse(list(sentence)))
        parses = max(parses, len(trees))
        theirs = math.log(math.fsum(tree.prob() for tree in trees))
        assert table.log_prob([sentence])[0] == pytest.approx(theirs, abs=TIGHT)
        assert chart.log_prob([sentence])[0] == pytest.approx(theirs, abs=TIGHT)
    assert (parses > 1) == (name != "lengths")


@EACH_EXAMPLE
def test_probabilities_are_those_of_the_trees_of_nltk(rules: Rules) -> None:
    """Earley's parser lists all trees, with empty rules too; a tree has the product of its rules' probabilities."""
    grammar = nltk.PCFG.fromstring(_in_decimals(rules))
    probability = {(rule.lhs(), rule.rhs()): rule.prob() for rule in grammar.productions()}
    parser = nltk.EarleyChartParser(nltk.CFG(grammar.start(), grammar.productions()))
    table, chart = (build(written(rules), "S") for build in (from_text, by_engine))
    for sentence in [*strings(table.terminals, 3), *(s for s, _ in table.enumerate() if len(s) > 3)]:
        theirs = math.fsum(
            math.prod(probability[rule.lhs(), rule.rhs()] for rule in tree.productions())
            for tree in parser.parse(list(sentence))
        )
        for ours in (table, chart):
            assert math.exp(ours.log_prob([sentence])[0]) == pytest.approx(theirs, rel=TIGHT, abs=0)


def _in_decimals(rules: Rules) -> str:
    """nltk reads no fractions, and rounds nothing away at 17 digits."""
    return "\n".join(
        f"{left} -> {' '.join(s if s in rules else repr(s) for s in right)} [{float(p):.17f}]"
        for left, options in rules.items()
        for right, p in options
    )


# Truncation


@EACH_EXAMPLE
@BOTH_WAYS
def test_truncation_is_the_language_given_the_length(build: LoadText, rules: Rules) -> None:
    true = derive_all(rules, "S")
    shortest, longest = min(map(len, true)), max(map(len, true))
    for length in range(shortest, longest + 1):
        short = {s: p for s, p in true.items() if len(s) <= length}
        kept = sum(short.values())
        truncated = build(written(rules), "S").truncated(length)
        given_short = {s: float(p / kept) for s, p in short.items()}
        assert dict(truncated.enumerate()) == pytest.approx(given_short, rel=TIGHT)
        assert truncated.log_prob(list(short)).tolist() == pytest.approx([math.log(p / kept) for p in short.values()])
        assert truncated.terminals == from_text(written(rules), "S").terminals
        assert truncated.max_length() == max(map(len, short))
        assert truncated.size() == len(short)
        for sentence in short:
            want = next_probs(short, truncated.terminals, sentence)
            assert truncated.next_token_probs(sentence) == pytest.approx(want, rel=TIGHT)
        assert truncated.mean_length().value == pytest.approx(
            float(sum(p * len(s) for s, p in short.items()) / kept), rel=TIGHT
        )


def test_truncation_knows_the_mass_that_it_keeps_also_twice() -> None:
    rules = EXAMPLES["empty rules"]
    true = derive_all(rules, "S")
    kept = {n: float(sum(p for s, p in true.items() if len(s) <= n)) for n in (1, 3)}
    three = from_text(written(rules), "S").truncated(3)
    one = three.truncated(1)
    assert from_text(written(rules), "S").mass == 1
    assert three.mass == pytest.approx(kept[3], rel=TIGHT)
    assert one.mass == pytest.approx(kept[1], rel=TIGHT)
    assert dict(one.enumerate()) == pytest.approx(dict(from_text(written(rules), "S").truncated(1).enumerate()))


@BOTH_WAYS
def test_truncation_at_the_longest_sentence_changes_nothing(build: LoadText) -> None:
    language = build(written(EXAMPLES["lengths"]), "S")
    assert language.max_length() == 4
    assert language.truncated(4) is language
    table = language.truncated(3)
    assert table.truncated(3) is table


@BOTH_WAYS
def test_truncation_below_the_shortest_sentence_is_refused_with_its_length(build: LoadText) -> None:
    language = build("S -> 'a' 'b' X\nX -> 'c' | 'd' 'e'", "S")
    with pytest.raises(ValueError, match="no sentence has at most 2 words; the shortest has 3"):
        language.truncated(2)


# Sampling


def chi_square_is_small(counts: Counter[object], expected: dict[object, float]) -> bool:
    """Within six standard deviations of what chance makes it; and nothing that cannot be."""
    assert min(expected.values()) > 5  # the law of large numbers needs something to count
    statistic = sum((counts[key] - want) ** 2 / want for key, want in expected.items())
    freedom = len(expected) - 1
    return counts.keys() <= expected.keys() and statistic < freedom + 6 * math.sqrt(2 * freedom)


@pytest.mark.parametrize("name", ["lengths", "ambiguous", "empty rules"])
@BOTH_WAYS
def test_sentences_are_drawn_with_their_probabilities(build: LoadText, name: str) -> None:
    draws = 20_000
    drawn = build(written(EXAMPLES[name]), "S").sample(draws, np.random.default_rng(7))
    true = derive_all(EXAMPLES[name], "S")
    common = {s: float(p) * draws for s, p in true.items() if p * draws > 6}
    assert len(drawn) == draws and set(drawn) <= true.keys()
    rare = draws - sum(common.values())
    counts = Counter(s if s in common else "rare" for s in drawn)
    assert chi_square_is_small(counts, {**common, **({"rare": rare} if rare > 5 else {})})


@BOTH_WAYS
def test_draws_are_independent_of_each_other(build: LoadText) -> None:
    pairs = 10_000
    share = {("a",): 1 / 2, ("b", "c"): 1 / 4, ("b", "d"): 1 / 4}
    drawn = build("S -> 'a' | 'b' X\nX -> 'c' | 'd'", "S").sample(2 * pairs, np.random.default_rng(11))
    expected = {(s, t): share[s] * share[t] * pairs for s in share for t in share}
    assert chi_square_is_small(Counter(zip(drawn[::2], drawn[1::2], strict=True)), expected)


@BOTH_WAYS
def test_draws_are_a_function_of_the_generator_alone(build: LoadText) -> None:
    language = build(written(EXAMPLES["empty rules"]), "S")
    rng = np.random.default_rng(3)
    first, second = language.sample(50, rng), language.sample(50, rng)
    assert first != second
    np.random.seed(0)  # whatever the global state is
    assert build(written(EXAMPLES["empty rules"]), "S").sample(50, np.random.default_rng(3)) == first
    assert language.sample(0, rng) == []


# Large languages

BITS = 20
LARGE = "S -> " + "B " * BITS + "\nB -> '0' | '1'"


def test_a_language_beyond_the_limit_is_not_written_out() -> None:
    captions = load("captions")
    short = from_text(written(EXAMPLES["lengths"]), "S").truncated(2)
    assert len(captions.enumerate(limit=8)) == captions.size(limit=8) == 8
    assert len(short.enumerate(limit=3)) == 3
    large = from_text(LARGE, "S")
    for ask in (
        lambda: captions.enumerate(limit=7),
        lambda: captions.size(limit=7),
        lambda: captions.truncated(6).enumerate(limit=7),
        lambda: short.enumerate(limit=2),
        large.enumerate,
        large.size,
    ):
        with pytest.raises(
            NotEnumerableError,
            match=r"the language has \d+ (derivations, \d+ can be written out|sentences, more than \d+)",
        ):
            ask()


@pytest.mark.parametrize("depth", [15, 40])
def test_more_derivations_than_can_be_written_down_are_just_too_many(depth: int) -> None:
    """Each level squares their number: 10^5800 at 15 levels, and 40 would fill any memory with digits."""
    language = from_text(unrolled("S '+' S [.4] | 'n' [.6]", depth, "'n'"), f"S{depth}")
    for ask in (language.enumerate, language.size):
        with pytest.raises(NotEnumerableError, match="more than"):
            ask()
    assert language.log_prob([tuple("n+n+n")])[0] == pytest.approx(math.log(216 / 3125), rel=TIGHT)
    assert language.truncated(5).size() == 3


def test_the_limit_counts_derivations() -> None:
    """Three sentences, four derivations: whether it fits is known before anything is written out."""
    language = from_text("S -> A A\nA -> 'a' | 'a' 'a'", "S")
    assert language.size(limit=4) == 3
    with pytest.raises(NotEnumerableError, match="has 4 derivations, 3 can be written out"):
        from_text("S -> A A\nA -> 'a' | 'a' 'a'", "S").size(limit=3)


def test_a_large_language_answers_all_that_needs_no_list() -> None:
    large = from_text(LARGE, "S")
    rng = np.random.default_rng(5)
    drawn = large.sample(300, rng)
    assert large.log_prob(drawn) == pytest.approx(np.full(300, -BITS * LN2), rel=TIGHT)
    rows = large.next_token_probs(drawn[0])
    assert rows[:-1] == pytest.approx(np.tile([0.5, 0.5, 0.0], (BITS, 1)), abs=TIGHT)
    assert rows[-1].tolist() == [0, 0, 1]
    assert large.mean_length() == Quantity(BITS)
    assert large.max_length() == BITS
    assert large.truncated(BITS) is large
    ones = Counter(word for sentence in drawn for word in sentence)["1"]
    assert abs(ones - 300 * BITS / 2) < 4 * math.sqrt(300 * BITS) / 2


# The table by itself


def test_a_table_is_renormalised_and_scores_by_its_own_words() -> None:
    table = SentenceTable(("b", "a"), {("a",): 0.1, ("b",): 0.1, ("a", "b"): 0.3})
    assert [s for s, _ in table.enumerate()] == [("a", "b"), ("b",), ("a",)]
    assert dict(table.enumerate()) == pytest.approx({("a", "b"): 0.6, ("b",): 0.2, ("a",): 0.2}, rel=TIGHT)
    assert table.next_token_probs(("a",)).tolist() == pytest.approx(np.array([[0.2, 0.8, 0], [0.75, 0, 0.25]]))


@pytest.mark.parametrize("rows", [{}, {("a",): 0.0}])
def test_a_table_without_mass_is_refused(rows: dict[Words, float]) -> None:
    with pytest.raises(ValueError, match="a language needs a sentence of positive probability"):
        SentenceTable(("a",), rows)


def test_a_long_sentence_does_not_underflow() -> None:
    """330 words of ten each: 10^-330 is no float, its log is."""
    words = [chr(ord("a") + index) for index in range(10)]
    text = f"S -> {'W ' * 330}\nW -> {' | '.join(map(repr, words))}"
    language = from_text(text, "S")
    sentence = tuple(words[index % 10] for index in range(330))
    assert language.log_prob([sentence])[0] == pytest.approx(-330 * math.log(10), rel=1e-12)
    rows = language.next_token_probs(sentence[:3])
    assert rows[:, :-1] == pytest.approx(np.full((4, 10), 0.1), abs=1e-12)
    assert rows[:, -1].tolist() == [0.0] * 4
