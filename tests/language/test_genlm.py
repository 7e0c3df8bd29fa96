"""Next-word distributions against those of genlm-grammar, an outside implementation by other people."""

import warnings

import numpy as np
import pytest

from grammarlab.language import load
from grammarlab.language.grammar import parse_grammar
from grammarlab.language.pcfg import PCFG

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of its own dependencies
    from genlm.grammar import CFG, EOS, EarleyLM, Float, add_EOS

Words = tuple[str, ...]


def outside(language: PCFG) -> EarleyLM:
    grammar = CFG(R=Float, S=language.grammar.start.name, V=set(language.terminals))
    for left, rules in language.grammar.rules.items():
        for rule in rules:
            grammar.add(rule.probability, left.name, *(str(symbol) for symbol in rule.right))
    return EarleyLM(add_EOS(grammar))


def check(language: PCFG, sentence: Words, tolerance: float = 1e-10) -> None:
    rows = language.next_token_probs(sentence)
    model = outside(language)
    for length in range(len(sentence) + 1):
        theirs = model.p_next(sentence[:length])
        want = [theirs[word] for word in (*language.terminals, EOS)]
        np.testing.assert_allclose(rows[length], want, rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    "text, sentence",
    [
        ("S -> S S [0.25] | 'a' [0.75]", "aaaaaa"),
        ("S -> '(' S ')' S [1/3] | [2/3]", "(()())()"),
        ("S -> S 'a' [.5] | 'a' [.5]", "aaaaa"),
        ("S -> S '+' S [.4] | 'n' [.6]", "n+n+n+n"),
        ("S -> A S B [.3] | 'c' [.7]\nA -> 'a' [.5] | [.5]\nB -> A A 'b' [.4] | A [.6]", "aacab"),
    ],
    ids=["R1", "R2", "R3", "R6", "empty"],
)
def test_small_grammars(text: str, sentence: str) -> None:
    check(PCFG(parse_grammar(text, "S"), table_limit=0), tuple(sentence))


def test_unit_cycles() -> None:
    text = "S -> S [.3] | A [.2] | 'a' [.1] | S E S [.2] | 'b' E [.2]\nA -> S [.5] | 'a' [.5]\nE -> [.5] | 'e' [.5]"
    check(PCFG(parse_grammar(text, "S"), table_limit=0), tuple("abeab"))


@pytest.mark.parametrize("name", ["cfg3b", "cfg3f"])
def test_sentences_of_cfg3(name: str) -> None:
    language = load(name, start="N19")
    check(language, language.sample(1, np.random.default_rng(4))[0])


@pytest.mark.parametrize("name", ["arithmetic", "palindromes", "tomita5", "dyck2"])
def test_languages_of_the_library(name: str) -> None:
    language = load(name)
    # It adds up recursive rules step by step until little changes: for tomita5, whose next word is known to be 0.4,
    # 0.4, 0.2, it is 1e-9 off.
    check(language, max(language.sample(20, np.random.default_rng(4)), key=len)[:25], tolerance=1e-8)
