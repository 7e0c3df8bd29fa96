"""The notation of grammars: what it reads, what it refuses and in which words."""

import re

import nltk
import numpy as np
import pytest

from grammarlab.language import SPECIAL_TOKENS, GrammarError, GrammarWarning, from_text, library_folder, load
from grammarlab.language.grammar import Grammar, Nonterminal, Rule, parse_grammar


def rules_of(grammar: Grammar) -> dict[str, dict[tuple[str, ...], float]]:
    """Left side to right side to probability; a nonterminal in a right side is written <X>."""
    return {
        left.name: {tuple(s if isinstance(s, str) else f"<{s}>" for s in r.right): r.probability for r in group}
        for left, group in grammar.rules.items()
    }


def read(text: str, start: str = "S") -> dict[str, dict[tuple[str, ...], float]]:
    return rules_of(parse_grammar(text, start))


# What is read

THE_SAME_GRAMMAR = {
    "one line": "S -> 'a' X [1/4] | X [3/4]\nX -> 'b' [1/2] | [1/2]",
    "decimals": "S -> 'a' X [0.25] | X [0.75]\nX -> 'b' [0.5] | [0.5]",
    "decimals without a leading zero": "S -> 'a' X [.25] | X [.75]\nX -> 'b' [.5] | [.5]",
    "exponents": "S -> 'a' X [25e-2] | X [7.5E-1]\nX -> 'b' [5e-1] | [5.0e-1]",
    "white space in brackets": "S -> 'a' X [ 1/4 ] | X [\t3/4]\nX -> 'b' [1/2 ] | [ .5 ]",
    "double quotes": 'S -> "a" X [1/4] | X [3/4]\nX -> "b" [1/2] | [1/2]',
    "the arrow as one sign": "S → 'a' X [1/4] | X [3/4]\nX → 'b' [1/2] | [1/2]",
    "no spaces": "S->'a'X[1/4]|X[3/4]\nX->'b'[1/2]|[1/2]",
    "many spaces": "  S  ->  'a'   X\t[1/4]   |   X [3/4]  \n\tX ->   'b' [1/2] |   [1/2]   ",
    "several lines of one left side": "S -> 'a' X [1/4]\nX -> 'b' [1/2]\nS -> X [3/4]\nX -> [1/2]",
    "backslash": "S -> 'a' X [1/4] \\\n   | X [3/4]\nX -> \\\n 'b' [1/2] \\\n | [1/2]",
    "backslash and white space behind it": "S -> 'a' X [1/4] \\  \n | X [3/4]\nX -> 'b' [1/2] | [1/2]",
    "comments": "# top\nS -> 'a' X [1/4] | X [3/4] # 'c' [1\n  # -> |\nX -> 'b' [1/2] | [1/2]#end",
    "a backslash in a comment": "# \\\nS -> 'a' X [1/4] | X [3/4] # C:\\\nX -> 'b' [1/2] | [1/2] # \\",
    "a backslash before a comment": "S -> 'a' X [1/4] \\ # more\n | X [3/4]\nX -> 'b' [1/2] | [1/2]",
    "blank lines": "\n\nS -> 'a' X [1/4] | X [3/4]\n   \nX -> 'b' [1/2] | [1/2]\n\n",
    "line ends of Windows": "S -> 'a' X [1/4] \\\r\n | X [3/4]\r\nX -> 'b' [1/2] | [1/2]\r\n",
    "uniform where nothing is stated": "S -> 'a' X [1/4] | X [3/4]\nX -> 'b' |",
    "uniform over several lines": "S -> 'a' X [1/4] | X [3/4]\nX -> 'b'\nX ->",
    "other order of left sides": "X -> 'b' [1/2] | [1/2]\nS -> 'a' X [1/4] | X [3/4]",
}


@pytest.mark.parametrize("text", THE_SAME_GRAMMAR.values(), ids=THE_SAME_GRAMMAR.keys())
def test_every_form_of_the_notation_reads_the_same_grammar(text: str) -> None:
    grammar = parse_grammar(text, "S")
    assert rules_of(grammar) == {
        "S": {("a", "<X>"): 0.25, ("<X>",): 0.75},
        "X": {("b",): 0.5, (): 0.5},
    }
    assert grammar.terminals == ("a", "b")
    assert grammar.start == Nonterminal("S")


def test_signs_of_the_notation_are_words_inside_quotes() -> None:
    words = ("->", "→", "|", "#", "[1/2]", "\\", "(", "'", '"', "X", "ε", "日本")
    text = "S -> " + " ".join(f'"{word}"' if word != '"' else f"'{word}'" for word in words)
    assert read(text) == {"S": {words: 1.0}}


def test_names_of_symbols_may_hold_digits_dashes_and_any_letters() -> None:
    assert read("NP-SBJ_1 -> É2 'b'\nÉ2->'a'", "NP-SBJ_1") == {
        "NP-SBJ_1": {("<É2>", "b"): 1.0},
        "É2": {("a",): 1.0},
    }


def test_a_word_and_a_symbol_of_the_same_name_differ() -> None:
    assert read("S -> 'S' X\nX -> 'X'") == {"S": {("S", "<X>"): 1.0}, "X": {("X",): 1.0}}


def test_an_empty_right_side_is_the_empty_sentence_and_no_word() -> None:
    for text in ("S ->", "S -> [1]", "S -> [1.0] # nothing"):
        grammar = parse_grammar(text, "S")
        assert rules_of(grammar) == {"S": {(): 1.0}}
        assert grammar.terminals == ()


def test_the_end_of_a_continued_line_parts_symbols() -> None:
    assert read("S -> X\\\nY\\\n'c'\nX -> 'a'\nY -> 'b'")["S"] == {("<X>", "<Y>", "c"): 1.0}


def test_thousandths_and_thirds_are_exact() -> None:
    assert read("S -> 'a' [1e-3] | 'b' [0.999]") == {"S": {("a",): 0.001, ("b",): 0.999}}
    assert read("S -> 'a' [1/3] | 'b' [2/3]") == {"S": {("a",): 1 / 3, ("b",): 2 / 3}}


@pytest.mark.parametrize("alternatives", [1, 2, 3, 7])
def test_alternatives_without_probabilities_are_equally_likely(alternatives: int) -> None:
    words = [f"w{number}" for number in range(alternatives)]
    got = read("S -> " + " | ".join(f"'{word}'" for word in words))
    assert got == {"S": {(word,): pytest.approx(1 / alternatives, rel=1e-15) for word in words}}


def test_a_grammar_of_nltk_reads_as_in_nltk() -> None:
    text = """
        S -> NP VP [1.0]
        VP -> V NP [0.59] | V [0.4] | VP PP [0.01]
        NP -> Det N [0.41] | Name [0.28] | NP PP [0.31]
        PP -> P NP [1.0]
        V -> 'saw' [0.21] | "ate" [0.51] | 'ran' [0.28]
        N -> 'boy' [0.11] | 'cookie' [0.12] | 'table' [0.13] | 'telescope' [0.14] | 'hill' [0.5]
        Name -> 'Jack' [0.52] | 'Bob' [0.48]
        P -> 'with' [0.61] | 'under' [0.39]
        Det -> 'the' [0.41] | 'a' [0.31] | 'my' [0.28]
    """
    theirs: dict[str, dict[tuple[str, ...], float]] = {}
    for rule in nltk.PCFG.fromstring(text).productions():
        right = tuple(s if isinstance(s, str) else f"<{s}>" for s in rule.rhs())
        theirs.setdefault(str(rule.lhs()), {})[right] = pytest.approx(rule.prob(), rel=1e-15)
    assert read(text) == theirs


def test_words_are_listed_in_the_order_of_their_first_use_from_the_start() -> None:
    grammar = parse_grammar("X -> 'z' | 'b' Y\nY -> 'a' | 'z'\nS -> 'm' X 'k' | 'c'", "S")
    assert grammar.terminals == ("m", "z", "b", "a", "k", "c")


def test_the_start_is_what_is_given_not_the_first_rule() -> None:
    lines = ["S -> 'a' X [1/4] | X [3/4]", "X -> 'b' Y [1/3] | 'c' [2/3]", "Y -> 'd' | 'e'"]
    want = dict(from_text("\n".join(lines), "S").enumerate())
    for shift in range(3):
        for order in (lines[shift:] + lines[:shift], (lines[shift:] + lines[:shift])[::-1]):
            language = from_text("\n".join(order), "S")
            assert dict(language.enumerate()) == want
            assert language.terminals == ("a", "b", "d", "e", "c")
    with pytest.warns(GrammarWarning):
        assert dict(from_text("\n".join(lines), "X").enumerate()).keys() == {("b", "d"), ("b", "e"), ("c",)}


def test_rules_print_as_they_are_written() -> None:
    assert str(Rule(Nonterminal("S"), ("a", Nonterminal("X")), 0.5)) == "S -> 'a' X"


# Sums

THIRDS = "S -> 'a' [{0}] | 'b' [{0}] | 'c' [{0}]"


@pytest.mark.parametrize("third", ["0.3333333", "0.333333333333", "0.3333333333333333", "1/3"])
def test_rounded_thirds_are_accepted_and_mean_thirds(third: str) -> None:
    got = read(THIRDS.format(third))["S"]
    assert got == {(word,): pytest.approx(1 / 3, rel=1e-15) for word in "abc"}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("S -> 'a' [.5] | 'b' [.495]", "S sum to 0.995, not to 1"),
        ("S -> 'a' [.5] | 'b' [.505]", "S sum to 1.005, not to 1"),
        (THIRDS.format("0.33333"), "S sum to 0.99999, not to 1"),
        ("S -> X [1]\nX -> 'a' [.2]\nX -> 'b' [.2]", "X sum to 0.4, not to 1"),
        ("S -> 'a' [0]", "S sum to 0, not to 1"),
        # what is wrong is wrong where nobody gets to as well
        ("S -> 'a' [1]\nX -> 'a' [.2]", "X sum to 0.2, not to 1"),
    ],
)
def test_a_sum_that_is_not_1_is_refused_with_its_symbol_and_value(text: str, named: str) -> None:
    with pytest.raises(GrammarError, match=re.escape(named)):
        parse_grammar(text, "S")


# What is refused

FAULTS = {
    "nothing": ("", "the grammar has no rules"),
    "comments alone": ("# S -> 'a'\n\n", "the grammar has no rules"),
    "no start": ("X -> 'a'\nY -> 'b'", "start symbol 'S' has no rule; the grammar defines X, Y"),
    "undefined": ("S -> 'a' B", "undefined symbol B in `S -> 'a' B`: give it a rule, or quote it"),
    "undefined, unused": ("S -> 'a' [1] | 'b' B [0]", "undefined symbol B in `S -> 'b' B`"),
    "undefined, unreachable": ("S -> 'a'\nX -> B", "undefined symbol B in `X -> B`"),
    "epsilon as a name": ("S -> 'a' | ε", "undefined symbol ε"),
    "unproductive": ("S -> 'a' [.5] | X [.5]\nX -> X 'b' [1]", "unproductive symbol X: no sentence"),
    "unproductive start": ("S -> S 'a'", "unproductive symbol S"),
    "unproductive pair": ("S -> 'a' | X\nX -> 'b' Y\nY -> X 'c'", "unproductive symbol X, Y"),
    "productive in an unused rule alone": ("S -> 'a' | X\nX -> X 'b' [1] | 'b' [0]", "unproductive symbol X"),
    "duplicate": ("S -> 'a' [.5] | 'b' [.25] | 'a' [.25]", "duplicate rule `S -> 'a'`: add up"),
    "duplicate without probabilities": ("S -> 'a' | 'b'\nS -> 'a'", "duplicate rule `S -> 'a'`"),
    "duplicate empty": ("S -> | 'a' |", "duplicate rule `S -> `"),
    "negative": ("S -> 'a' [1.5] | 'b' [-0.5]", "probability 1.5 of `S -> 'a'` is not between 0 and 1"),
    "negative first": ("S -> 'a' [-0.5] | 'b' [1.5]", "probability -0.5 of `S -> 'a'` is not between"),
    "minus one": ("S -> 'a' [-1] | 'b' [2]", "probability -1 of `S -> 'a'`"),
    "above 1": ("S -> 'a' [2]", "probability 2 of `S -> 'a'`"),
    "fraction above 1": ("S -> 'a' [3/2]", "probability 1.5 of `S -> 'a'`"),
    "NaN": ("S -> 'a' [nan]", "line 1: [nan] is no probability; write 0.25, 1e-3 or 1/4"),
    "infinity": ("S -> 'a' [inf]", "line 1: [inf] is no probability"),
    "division by 0": ("S -> 'a' [1/0]", "line 1: [1/0] is no probability"),
    "more than a float holds": ("S -> 'a' [1e400]", "line 1: [1e400] is no probability"),
    "less than a float holds": ("S -> 'a' [1] | 'b' [1e-400]", "line 1: [1e-400] is no probability"),
    "a fraction that would take forever": ("S -> 'a' [1e999999999]", "line 1: [1e999999999] is no probability"),
    "empty brackets": ("S -> 'a' []", "line 1: [] is no probability"),
    "a word in brackets": ("S -> 'a' [half]", "line 1: [half] is no probability"),
    "percent": ("S -> 'a' [50%]", "line 1: [50%] is no probability"),
    "decimal comma": ("S -> 'a' [0,5]", "line 1: [0,5] is no probability"),
    "empty terminal": ("S -> 'a' | ''", "empty terminal '' in `S -> ''`: leave the right side empty"),
    "empty terminal in double quotes": ('S -> "a" ""', "empty terminal ''"),
    "space in a terminal": ("S -> 'a b'", "terminal 'a b' in `S -> 'a b'` holds white space"),
    "space around a terminal": ("S -> ' a'", "terminal ' a' in `S -> ' a'` holds white space"),
    "a terminal of a space": ("S -> ' '", "terminal ' ' in `S -> ' '` holds white space"),
    "tab in a terminal": ("S -> 'a\tb'", "holds white space"),
    "mixed on a line": ("S -> 'a' [.5] | 'b'", "line 1: S has alternatives with and without a probability"),
    "mixed over lines": ("S -> 'a'\n\nS -> 'b' [.5]", "line 3: S has alternatives with and without"),
    "no arrow": ("S 'a'", "line 1: expected `Left -> right side`, found \"S 'a'\""),
    "a name alone": ("S", "line 1: expected `Left -> right side`, found 'S'"),
    "no left side": ("-> 'a'", "line 1: expected `Left -> right side`"),
    "two left sides": ("S T -> 'a'", "line 1: expected `Left -> right side`"),
    "a word as left side": ("'S' -> 'a'", "line 1: expected `Left -> right side`"),
    "a bar as left side": ("| -> 'a'", "line 1: expected `Left -> right side`"),
    "an arrow in two pieces": ("S - > 'a'", "line 1: expected `Left -> right side`"),
    "two arrows": ("S -> 'a' X -> 'b'", "line 1: a second arrow; one left side a line"),
    "a forgotten bar": ("S -> 'a' [.5] 'b' [.5]", "line 1: 'b' after a probability; is a | missing?"),
    "two probabilities": ("S -> 'a' [.5] [.5]", "line 1: '.5' after a probability; is a | missing?"),
    "a probability in front": ("S -> [1] 'a'", "line 1: 'a' after a probability"),
    "an open quote": ("S -> 'a", 'line 1: cannot read "\'a"; is a quote or a bracket not closed?'),
    "an open double quote": ('S -> "a', "line 1: cannot read '\"a'; is a quote or a bracket not closed?"),
    "quotes that differ": ("S -> 'a\"", "line 1: cannot read"),
    "an open bracket": ("S -> 'a' [.5", "line 1: cannot read '[.5'; is a quote or a bracket not closed?"),
    "a bracket never opened": ("S -> 'a' .5]", "line 1: cannot read ']'"),
    "a backslash at the end": ("S -> 'a'\nS -> 'b' \\", "line 2: the last line ends in a backslash"),
}


@pytest.mark.parametrize(("text", "message"), FAULTS.values(), ids=FAULTS.keys())
def test_every_fault_is_named(text: str, message: str) -> None:
    with pytest.raises(GrammarError, match=re.escape(message)) as caught:
        parse_grammar(text, "S")
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("token", SPECIAL_TOKENS)
def test_words_of_the_names_of_special_tokens_are_refused(token: str) -> None:
    with pytest.raises(GrammarError, match=f"terminal '{token}' in `S -> 'a' '{token}'` is reserved"):
        parse_grammar(f"S -> 'a' '{token}'", "S")


def test_faults_are_found_in_rules_built_by_hand_as_well() -> None:
    s = Nonterminal("S")
    with pytest.raises(GrammarError, match="probability nan of `S -> 'a'` is not between 0 and 1"):
        Grammar([Rule(s, ("a",), float("nan"))], "S")
    with pytest.raises(GrammarError, match="the grammar has no rules"):
        Grammar([], "S")


def test_the_line_of_a_fault_is_counted_in_the_file_as_it_is() -> None:
    """Comments, blank lines and continued lines count; a continued line has the number of its first."""
    before = "# comment\n\nS -> 'a' \\\n | \\\n 'b'\n"
    with pytest.raises(GrammarError, match=r"^line 6: expected"):
        parse_grammar(before + "X 'c'", "S")
    with pytest.raises(GrammarError, match=r"^line 6: .*bracket not closed"):
        parse_grammar(before + "X -> 'c' \\\n | \\\n 'd' [", "S")


# What warns, and what is never used


def test_unreachable_symbols_warn_and_change_nothing() -> None:
    text = "S -> 'a' X\nX -> 'b' | 'c'"
    with pytest.warns(GrammarWarning, match="^unreachable from S: Y, Z$"):
        grammar = parse_grammar(text + "\nY -> 'd' Z | X\nZ -> 'e'", "S")
    assert rules_of(grammar) == read(text)
    assert grammar.terminals == ("a", "b", "c")


def test_unreachable_symbols_need_not_be_productive_or_finite() -> None:
    with pytest.warns(GrammarWarning, match="unreachable from S: X, Y"):
        language = from_text("S -> 'a'\nX -> X 'b' | 'b'\nY -> Y", "S")
    assert language.enumerate() == [(("a",), 1.0)]


def test_a_rule_of_probability_0_is_never_used() -> None:
    language = from_text("S -> 'a' [0.5] | 'never' [0] | 'b' [1/2] | S 'a' [0.0]", "S")
    assert language.terminals == ("a", "b")
    assert set(language.sample(2_000, np.random.default_rng(0))) == {("a",), ("b",)}
    assert language.log_prob([("never",), ("a", "a")]).tolist() == [-np.inf, -np.inf]
    assert dict(language.enumerate()) == {("a",): 0.5, ("b",): 0.5}
    with pytest.warns(GrammarWarning, match="^unreachable from S: X$"):
        language = from_text("S -> 'a' [1] | X [0]\nX -> X 'x' [1]", "S")
    assert language.enumerate() == [(("a",), 1.0)]


# The library


def test_a_language_of_the_library_is_loaded_by_its_name() -> None:
    assert (library_folder() / "captions.yaml").is_file()
    assert load("captions").terminals == ("a", "photo", "of", "large", "small", "plus", "circle", "in", "the")


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    # `file` is the form that takes a grammar of the user's own, no language
    for name in ("captoins", "file", "../language/captions"):
        with pytest.raises(ValueError, match=f"no language {name!r} in the library; it has .*captions"):
            load(name)


def test_a_language_of_the_library_can_start_elsewhere() -> None:
    assert load("captions", start="Size").enumerate() == [(("large",), 0.5), (("small",), 0.5)]
    with pytest.raises(GrammarError, match="start symbol 'Nowhere' has no rule; the grammar defines Caption"):
        load("captions", start="Nowhere")
