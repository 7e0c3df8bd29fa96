"""Proofs that a grammar is unambiguous: which are found, and that none is wrong."""

import warnings
from itertools import product

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from grammarlab.language.ambiguity import proved_unambiguous
from grammarlab.language.grammar import Grammar, GrammarError, GrammarWarning, Nonterminal, Symbol, parse_grammar

EXPRESSIONS = "E -> E '+' T | T\nT -> T '*' F | F\nF -> '(' E ')' | 'n'"

UNAMBIGUOUS = {
    "one word": "S -> 'a'",
    "only the empty sentence": "S ->",
    "Dyck": "S -> '(' S ')' S |",
    "Dyck from the right": "S -> S '(' S ')' |",
    "Dyck of two kinds": "S -> '(' S ')' S | '[' S ']' S |",
    "left recursion": "S -> S 'a' | 'a'",
    "right recursion": "S -> 'a' S | 'a'",
    "left recursion from nothing": "S -> S 'a' |",
    "indirect left recursion": "S -> A 'a' | 'b'\nA -> S 'c' | 'd'",
    "expressions": EXPRESSIONS.replace("E", "S"),
    "equal numbers": "S -> 'a' S 'b' |",
    "more of the first": "S -> 'a' S | B\nB -> 'a' B 'b' |",
    "deterministic automaton": "S -> 'a' S | 'b' T | 'c'\nT -> 'a' S | 'b' T |",
    "dangling else that has an end": "S -> 'if' S 'fi' | 'if' S 'else' S 'fi' | 'x'",
    "LR(1) but not LALR(1)": "S -> 'a' A 'd' | 'b' B 'd' | 'a' B 'e' | 'b' A 'e'\nA -> 'c'\nB -> 'c'",
    "empty symbols": "S -> A B 'c'\nA -> 'a' |\nB -> 'b' |",
    "symbols that are always empty": "S -> N S N 'a' | 'b'\nN -> M M\nM ->",
    "units": "S -> A\nA -> B\nB -> 'a' | 'b'",
    "a list of lists": "S -> L\nL -> L ';' I | I\nI -> 'x' I |",
    "a name like a word": "S -> A 'S'\nA -> 'A' A |",
    # Not LR(k) for any k.
    "palindromes": "S -> 'a' S 'a' | 'b' S 'b' | 'a' | 'b' |",
    "even palindromes": "S -> 'a' S 'a' | 'b' S 'b' |",
    "palindromes in a frame": "S -> '<' P '>' | 'x'\nP -> 'a' P 'a' | 'b' P 'b' | 'a' | 'b'",
    "told apart at the last word": "S -> A 'x' | B 'y'\nA -> 'a' A | 'a'\nB -> 'a' B | 'a'",
    "told apart by length": "S -> 'a' W 'a' | 'a' W W 'a' | 'a' W W S 'a'\nW -> 'a' | 'b'",
    "one right side in two lengths": "S -> A | A A | A A A\nA -> 'a' | 'b'",
}

AMBIGUOUS = {
    "two halves": "S -> S S | 'a'",
    "two halves, or nothing": "S -> S S | 'a' |",
    "sums": "S -> S '+' S | 'n'",
    "dangling else": "S -> 'if' S | 'if' S 'else' S | 'x'",
    "a unit cycle of one": "S -> S | 'a'",
    "a unit cycle of two": "S -> A | 'a'\nA -> S",
    "a unit cycle apart": "S -> 'b' A\nA -> B\nB -> A | 'a'",
    "a unit cycle, told apart by length": "S -> A | 'a' 'a'\nA -> B | 'b' 'a' 'b'\nB -> A",
    "a nullable cycle at the left": "S -> S B | 'a'\nB ->",
    "a nullable cycle at the right": "S -> B S | 'a'\nB ->",
    "a nullable cycle at times": "S -> S B | 'a'\nB -> 'b' |",
    "a cycle of empty sentences": "S -> S S |",
    "two names of a word": "S -> A | B\nA -> 'a'\nB -> 'a'",
    "two names of nothing": "S -> A | B\nA ->\nB ->",
    "nothing in two ways": "S -> A |\nA -> 'a' |",
    "which of the two is empty": "S -> A A\nA -> 'a' |",
    "a border that can move": "S -> A A\nA -> 'a' A | 'a'",
    "a border of fixed symbols that can move": "S -> A 'a' A\nA -> 'a' |",
    "overlap of a fixed and a variable rule": "S -> 'a' 'a' 'a' | A\nA -> 'a' A 'a' | 'a'",
    "two recursions": "S -> 'a' S | S 'a' | 'b'",
    "palindromes with one rule too many": "S -> 'a' S 'a' | 'b' S 'b' | 'a' | 'b' | 'a' 'b' 'a' |",
    "first words behind an empty symbol": "S -> N 'a' | 'a'\nN -> 'b' |",
    "last words before an empty symbol": "S -> 'a' N | 'a'\nN -> 'b' |",
    "a union of two languages that meet": "S -> A | B\nA -> 'a' A 'b' |\nB -> 'a' B |",
}


@pytest.mark.parametrize("text", UNAMBIGUOUS.values(), ids=UNAMBIGUOUS.keys())
def test_proofs_that_are_found(text: str) -> None:
    grammar = parse_grammar(text, "S")
    assert proved_unambiguous(grammar)
    assert doubled(grammar) == []


@pytest.mark.parametrize("text", AMBIGUOUS.values(), ids=AMBIGUOUS.keys())
def test_nothing_ambiguous_is_proved(text: str) -> None:
    grammar = parse_grammar(text, "S")
    assert not proved_unambiguous(grammar)
    assert doubled(grammar)  # the case is what it is said to be


def test_no_proof_where_neither_criterion_holds() -> None:
    # Unambiguous: the last word decides. But no bound on the words ahead tells where the first A ends.
    grammar = parse_grammar("S -> A X 'x' | B Y 'y'\nA -> 'a' A |\nX -> 'b' X |\nB -> 'a' B |\nY -> 'b' Y |", "S")
    assert doubled(grammar) == []
    assert not proved_unambiguous(grammar)


def test_the_limit_on_states() -> None:
    grammar = parse_grammar(EXPRESSIONS, "E")
    # The automaton of the textbooks has 22 states.
    assert proved_unambiguous(grammar, max_states=22)
    assert not proved_unambiguous(grammar, max_states=21)
    # Words and lengths need none.
    assert proved_unambiguous(parse_grammar(UNAMBIGUOUS["palindromes"], "S"), max_states=0)


def test_the_start_need_not_be_the_first_left_side() -> None:
    assert proved_unambiguous(parse_grammar("A -> 'a' A |\nS -> A 'b' A", "S"))
    assert not proved_unambiguous(parse_grammar("A -> 'a' A |\nS -> A A", "S"))


def test_long_rules_and_long_chains() -> None:
    words = " ".join(["'a' E"] * 900)
    assert proved_unambiguous(parse_grammar(f"S -> {words} 'c' L\nE ->\nL -> L 'c' M |\nM -> 'd' M |", "S"))
    assert not proved_unambiguous(parse_grammar(f"S -> {words} L L\nE ->\nL -> 'c' |", "S"))
    chain = "\n".join(f"X{n} -> X{n + 1} 'a' X{n + 1} | 'b'" for n in range(200))
    assert not proved_unambiguous(parse_grammar(f"{chain}\nX200 -> 'c' | 'c' E\nE ->", "X0"))
    units = "\n".join(f"X{n} -> X{n + 1}" for n in range(900))
    assert proved_unambiguous(parse_grammar(f"{units}\nX900 -> 'a' X0 'b' X0 |", "X0"))
    assert not proved_unambiguous(parse_grammar(f"{units}\nX900 -> X0 | 'a'", "X0"))


def test_lengths_beyond_any_number_of_words() -> None:
    doubling = "\n".join(f"X{n} -> X{n - 1} X{n - 1}" for n in range(1, 60)) + "\nX0 -> 'a'"
    assert proved_unambiguous(parse_grammar(f"S -> R X59\nR -> 'a' R | 'a'\n{doubling}", "S"))
    doubling += "\nX60 -> X59 X59"
    # R derives what the other rule does, the 'a' 2^60 + 1 times: no length counts as greater than an infinite one.
    assert not proved_unambiguous(parse_grammar(f"S -> R | 'a' X60\nR -> 'a' R | 'a'\n{doubling}", "S"))
    # The words 'b' belong to L or to R: two lengths that are too great do not count as the same.
    assert not proved_unambiguous(parse_grammar(f"S -> L R\nL -> L 'b' | X60\nR -> 'b' R | X60\n{doubling}", "S"))


# The law, on random grammars

SIDES = st.lists(st.sampled_from(["S", "A", "B", "'a'", "'b'", "'a'", "'b'"]), max_size=3).map(" ".join)
ALTERNATIVES = st.lists(SIDES, min_size=1, max_size=3, unique=True).map(" | ".join)


@st.composite
def grammars(draw: st.DrawFn) -> Grammar:
    text = "\n".join(f"{left} -> {draw(ALTERNATIVES)}" for left in "SAB")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GrammarWarning)
        try:
            return parse_grammar(text, "S")
        except GrammarError:  # some symbol derives no sentence
            assume(False)
            raise


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(grammars())
def test_no_sentence_of_a_proved_grammar_has_two_trees(grammar: Grammar) -> None:
    if proved_unambiguous(grammar):
        assert doubled(grammar) == []


def doubled(grammar: Grammar, length: int = 5) -> list[tuple[Nonterminal, tuple[str, ...]]]:
    """The nonterminals and short strings of words such that the one derives the other by at least two trees.

    Trees of growing height are counted, up to 2, until no count changes.
    """
    strings = [string for n in range(length + 1) for string in product(grammar.terminals, repeat=n)]
    counts = {(left, string): 0 for left in grammar.rules for string in strings}
    while True:
        new = {
            (left, string): min(2, sum(ways(rule.right, string, counts) for rule in grammar.rules[left]))
            for left, string in counts
        }
        if new == counts:
            return [key for key, count in counts.items() if count == 2]
        counts = new


def ways(
    right: tuple[Symbol, ...], string: tuple[str, ...], counts: dict[tuple[Nonterminal, tuple[str, ...]], int]
) -> int:
    """How often the symbols of a right side derive the string, given how often each nonterminal derives each string."""
    if not right:
        return int(string == ())
    if isinstance(right[0], str):
        return ways(right[1:], string[1:], counts) if string[:1] == right[:1] else 0
    return sum(
        counts[right[0], string[:cut]] and counts[right[0], string[:cut]] * ways(right[1:], string[cut:], counts)
        for cut in range(len(string) + 1)
    )
