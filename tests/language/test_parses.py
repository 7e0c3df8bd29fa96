"""The best tree and the number of trees of a sentence: held against closed forms, nltk and brute force."""

import itertools
import math
import warnings
from collections.abc import Iterator

import nltk
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from nltk.parse.pchart import InsideChartParser

from grammarlab.language import load, parses
from grammarlab.language.engine import Engine
from grammarlab.language.grammar import Grammar, GrammarError, GrammarWarning, Nonterminal, Rule, parse_grammar
from grammarlab.language.parses import Parse, Tree
from grammarlab.language.sums import Sums

Words = tuple[str, ...]
Key = tuple[Nonterminal, Words]

SUM = "E -> E '+' E [.4] | 'n' [.6]"
HALVES = "S -> S S [.25] | 'a' [.75]"


def best_parse(text: str, start: str, sentence: Words) -> Parse:
    grammar = parse_grammar(text, start)
    parse = parses.best_parse(grammar, Engine(grammar), sentence)
    check(grammar, sentence, parse)
    return parse


def count_parses(text: str, start: str, sentence: Words) -> float:
    grammar = parse_grammar(text, start)
    return parses.count_parses(grammar, Engine(grammar), sentence)


def check(grammar: Grammar, sentence: Words, parse: Parse) -> None:
    """The tree is one of the grammar, its leaves are the sentence, its rules' product is its probability."""
    assert parse.tree.label == grammar.start.name
    leaves, rules = [], []
    waiting: list[Tree | str] = [parse.tree]
    while waiting:
        part = waiting.pop()
        if isinstance(part, str):
            leaves.append(part)
        else:
            rules.append(rule_of(grammar, part))
            waiting.extend(reversed(part.children))
    assert tuple(leaves) == sentence
    assert math.fsum(math.log(rule.probability) for rule in rules) == pytest.approx(parse.log_prob, rel=1e-12)


def rule_of(grammar: Grammar, tree: Tree) -> Rule:
    right = tuple(child if isinstance(child, str) else Nonterminal(child.label) for child in tree.children)
    (rule,) = (rule for rule in grammar.rules[Nonterminal(tree.label)] if rule.right == right)
    return rule


# The best


@pytest.mark.parametrize(("n", "probability"), [(1, 3 / 5), (2, 18 / 125), (3, 108 / 3125), (4, 648 / 78125)])
def test_the_best_sum(n: int, probability: float) -> None:
    parse = best_parse(SUM, "E", tuple("+".join("n" * n)))
    assert math.exp(parse.log_prob) == pytest.approx(probability, rel=1e-12)


def test_brackets() -> None:
    text = "S -> A 'b' A\nA -> 'a' A [.9] | [.1]"
    assert str(best_parse(text, "S", ("a", "b")).tree) == "(S (A a (A )) b (A ))"
    assert str(best_parse(text, "S", ("b",)).tree) == "(S (A ) b (A ))"
    assert str(Tree("S", (Tree("A", ("a",)), "b"))) == "(S (A a) b)"


def test_a_detour_of_unit_rules_that_is_more_probable() -> None:
    text = "S -> A [.9] | 'a' [.1]\nA -> N B N [.8] | 'a' [.1] | S [.1]\nB -> 'a' [.7] | A [.3]\nN -> [.9] | N N [.1]"
    parse = best_parse(text, "S", ("a",))
    assert str(parse.tree) == "(S (A (N ) (B a) (N )))"
    assert math.exp(parse.log_prob) == pytest.approx(0.9 * 0.8 * 0.7 * 0.81, rel=1e-12)


def test_nothing_in_the_best_of_several_ways() -> None:
    text = "S -> A [.4] | [.1] | S S [.2] | 'a' [.3]\nA -> B B [.5] | 'b' [.5]\nB -> [.9] | 'b' [.1]"
    parse = best_parse(text, "S", ())
    assert str(parse.tree) == "(S (A (B ) (B )))"
    assert math.exp(parse.log_prob) == pytest.approx(0.4 * 0.5 * 0.81, rel=1e-12)


@pytest.mark.parametrize("sentence", [(), ("+",), ("n", "+"), ("n", "x"), ("n", "n")])
def test_no_sentence(sentence: Words) -> None:
    grammar = parse_grammar(SUM, "E")
    with pytest.raises(ValueError, match="is no sentence of the language"):
        parses.best_parse(grammar, Engine(grammar), sentence)
    assert parses.count_parses(grammar, Engine(grammar), sentence) == 0


@pytest.mark.parametrize("rules", ["S 'a' | 'b'", "'a' S | 'b'", "'a' T | 'b'\nT -> S N\nN ->"])
def test_deep_trees(rules: str) -> None:
    sentence = ("b", *"a" * 5000) if rules.startswith("S") else (*"a" * 5000, "b")
    parse = best_parse(f"S -> {rules}", "S", sentence)
    assert parse.log_prob == pytest.approx(5001 * math.log(0.5), rel=1e-12)
    assert str(parse.tree).count("(S") == 5001
    assert count_parses(f"S -> {rules}", "S", sentence) == 1


# How many


@pytest.mark.parametrize("n", [*range(1, 13), 60])
def test_catalan(n: int) -> None:
    count = count_parses(HALVES, "S", ("a",) * n)
    assert isinstance(count, int)
    assert count == math.comb(2 * n - 2, n - 1) // n
    assert count_parses(SUM, "E", tuple("+".join("n" * n))) == count


def test_endlessly_many() -> None:
    assert count_parses("S -> S [.5] | 'a' [.5]", "S", ("a",)) == math.inf
    assert count_parses("S -> S S [.2] | 'a' [.3] | [.5]", "S", ()) == math.inf
    # Only where the cycle is.
    text = "S -> 'b' A | 'c' S S | 'd'\nA -> A N [.5] | 'a' [.5]\nN -> [.5] | 'n' [.5]"
    assert count_parses(text, "S", ("b", "a")) == math.inf
    assert count_parses(text, "S", ("c", "d", "d")) == 1
    assert count_parses(text, "S", ("c", "b", "a", "n", "d")) == math.inf


def test_endlessly_many_beside_more_than_a_float_holds() -> None:
    text = "S -> T [.5] | C [.5]\nT -> T T [.25] | 'a' [.75]\nC -> C [.3] | C 'a' [.3] | 'a' [.4]"
    assert count_parses(text, "S", ("a",) * 30) == math.inf
    assert parses.COUNTS.mul(10**400, math.inf) == math.inf
    counts: dict[int, float] = {0: 10**400}
    parses._add_to(counts, 0, math.inf)
    assert counts == {0: math.inf}


# nltk

OUTSIDE = {
    "sums": (SUM, "n+", 7),
    "halves": (HALVES, "a", 6),
    "units": (
        "S -> A [.5] | B [.3] | 'a' S [.2]\nA -> S B [.3] | 'a' [.6] | B [.1]\nB -> 'b' [.55] | 'a' 'b' [.45]",
        "ab",
        6,
    ),
    "attachment": (
        "S -> N V [1]\nV -> 'sees' N [.6] | V P [.4]\nN -> 'we' [.3] | 'men' [.45] | N P [.25]\nP -> 'with' N [1]",
        ["sees", "we", "men", "with"],
        5,
    ),
}


@pytest.mark.parametrize(("text", "words", "longest"), OUTSIDE.values(), ids=OUTSIDE.keys())
def test_nltk_agrees(text: str, words: list[str], longest: int) -> None:
    start = text[0]
    grammar = parse_grammar(text, start)
    engine = Engine(grammar)
    theirs = nltk.PCFG.fromstring(text)
    viterbi, inside, chart = nltk.ViterbiParser(theirs), InsideChartParser(theirs), nltk.ChartParser(theirs)
    found = 0
    for n in range(1, longest + 1):
        for sentence in itertools.product(words, repeat=n):
            trees = list(chart.parse(sentence))
            assert parses.count_parses(grammar, engine, sentence) == len(trees)
            if not trees:
                continue
            found += 1
            parse = parses.best_parse(grammar, engine, sentence)
            check(grammar, sentence, parse)
            (best,) = viterbi.parse(sentence)
            assert math.exp(parse.log_prob) == pytest.approx(best.prob(), rel=1e-12)
            probabilities = {tree.pformat(margin=10**9): tree.prob() for tree in inside.parse(list(sentence))}
            assert probabilities[str(parse.tree)] == pytest.approx(best.prob(), rel=1e-12)
    assert found > 3


# Brute force

SIDES = st.lists(st.sampled_from(["S", "A", "B", "'a'", "'b'", "'a'"]), max_size=3).map(" ".join)


@st.composite
def grammars(draw: st.DrawFn) -> Grammar:
    lines = []
    for left in "SAB":
        sides = draw(st.lists(SIDES, min_size=1, max_size=3, unique=True))
        shares = [draw(st.integers(1, 9)) for _ in sides]
        lines.append(f"{left} -> " + " | ".join(f"{s} [{p}/{sum(shares)}]" for s, p in zip(sides, shares, strict=True)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GrammarWarning)
        try:
            grammar = parse_grammar("\n".join(lines), "S")
        except GrammarError:  # some symbol derives no sentence
            assume(False)
            raise
    assume(Sums(grammar).masses()[0] == 1)
    return grammar


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(grammars())
def test_random_grammars(grammar: Grammar) -> None:
    engine = Engine(grammar)
    strings = [string for n in range(4) for string in itertools.product(grammar.terminals, repeat=n)]
    counts, best = by_iteration(grammar, strings)
    for string in strings:
        key = (grammar.start, string)
        assert parses.count_parses(grammar, engine, string) == counts[key]
        if counts[key]:
            parse = parses.best_parse(grammar, engine, string)
            check(grammar, string, parse)
            assert math.exp(parse.log_prob) == pytest.approx(best[key], rel=1e-9)


def by_iteration(grammar: Grammar, strings: list[Words]) -> tuple[dict[Key, float], dict[Key, float]]:
    """Number of trees and probability of the best, by symbol and string: trees of growing height until nothing changes.

    A count that changes after as many rounds as there are keys has a cycle below it, where it grows for ever. It is
    infinite then, and so is what it goes into.
    """
    keys = [(left, string) for left in grammar.rules for string in strings]
    ways = {key: list(products(grammar, key)) for key in keys}
    best = dict.fromkeys(keys, 0.0)
    while True:
        new = {
            key: max([p * math.prod(best[part] for part in parts) for p, parts in ways[key]], default=0.0)
            for key in keys
        }
        if new == best:
            break
        best = new
    # Only what derives something counts; then a tree is endless just if its key can be reached from itself.
    live = {key: [parts for _, parts in ways[key] if all(best[part] for part in parts)] for key in keys if best[key]}
    reached = {key: {part for parts in live[key] for part in parts} for key in live}
    changed = True
    while changed:
        changed = False
        for parts in reached.values():
            more = set().union(*(reached[part] for part in parts)) - parts
            if more:
                parts |= more
                changed = True
    counts: dict[Key, float] = {key: 0 for key in keys if key not in live}
    endless = {key for key in live if key in reached[key]}
    counts |= {key: math.inf for key in live if key in endless or reached[key] & endless}

    def count(key: Key) -> float:
        if key not in counts:
            counts[key] = sum(math.prod(count(part) for part in parts) for parts in live[key])
        return counts[key]

    return {key: count(key) for key in keys}, best


def products(grammar: Grammar, key: Key) -> Iterator[tuple[float, list[Key]]]:
    """Each way to begin the derivation of a string: the rule's probability and what its symbols are to derive."""
    left, string = key
    for rule in grammar.rules[left]:
        n = len(rule.right)
        for cuts in itertools.combinations_with_replacement(range(len(string) + 1), max(n - 1, 0)):
            bounds = [0, *cuts, len(string)]
            if n == 0 and string:
                continue
            pieces = [(s, string[bounds[i] : bounds[i + 1]]) for i, s in enumerate(rule.right)]
            if all(piece == (s,) for s, piece in pieces if isinstance(s, str)):
                yield rule.probability, [(s, piece) for s, piece in pieces if isinstance(s, Nonterminal)]


def test_a_tree_is_drawn_as_nltk_draws_it() -> None:
    """Brackets as words would be read as structure by nltk's reader: the tree is built, not read."""
    tree = load("dyck1").viterbi(("(", ")")).tree
    wanted = nltk.Tree("S", ["(", nltk.Tree("S", []), ")", nltk.Tree("S", [])])
    drawn = nltk.tree.prettyprinter.TreePrettyPrinter(wanted).text()
    assert tree.pretty() == "\n".join(line.rstrip() for line in drawn.splitlines())
    assert load("dyck1").viterbi(()).tree.pretty() == "(S )"
