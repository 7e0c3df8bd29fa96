"""Generated grammars: the same arguments, the same text; every symbol used; what cannot be made is refused by name."""

import os
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

import grammarlab
from grammarlab.language.generators import GENERATORS, dyck, random_grammar
from grammarlab.language.grammar import Grammar, GrammarWarning, Nonterminal, parse_grammar

SIZES = [
    # levels, symbols, rules, words
    (4, 3, 2, 3),
    (1, 1, 1, 1),
    (1, 1, 2, 1),  # all right sides that there are
    (1, 9, 12, 2),  # all again; no level of several symbols
    (1, 5, 2, 6),  # as many words as there are places
    (2, 6, 2, 3),  # as many symbols as there are places
    (3, 2, 12, 2),
    (3, 18, 6, 324),
    (6, 4, 3, 10),
]


def clean(text: str) -> Grammar:
    """The grammar of a text that gives no cause for a warning: every symbol is reachable."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", GrammarWarning)
        return parse_grammar(text, "S")


def level_of(name: str, levels: int) -> int:
    return levels if name == "S" else int(re.fullmatch(r"L(\d+)_\d+", name)[1])  # type: ignore[index]


# Dyck


def test_dyck_has_a_rule_a_kind_and_one_to_stop() -> None:
    grammar = clean(dyck(3, 0.25))
    s = Nonterminal("S")
    assert {rule.right: rule.probability for rule in grammar.rules[s]} == {
        ("(", s, ")", s): pytest.approx(0.25 / 3, rel=1e-15),
        ("[", s, "]", s): pytest.approx(0.25 / 3, rel=1e-15),
        ("{", s, "}", s): pytest.approx(0.25 / 3, rel=1e-15),
        (): pytest.approx(0.75, rel=1e-15),
    }


@pytest.mark.parametrize("k", [1, 2, 4, 5, 40])
def test_dyck_of_any_kinds_has_twice_as_many_words_all_different(k: int) -> None:
    words = clean(dyck(k, 1 / 3)).terminals
    assert len(words) == len(set(words)) == 2 * k
    assert words[:8] == ("(", ")", "[", "]", "{", "}", "<", ">")[: 2 * k]
    assert words[8:10] == (("(5", ")5") if k > 4 else ())


@pytest.mark.parametrize("p", [1e-300, 1e-9, 0.1, 1 / 3, 0.5, 2 / 3, 0.999999999])
def test_dyck_keeps_its_parameter(p: float) -> None:
    rules = clean(dyck(7, p)).rules[Nonterminal("S")]
    assert sum(rule.probability for rule in rules if rule.right) == pytest.approx(p, rel=1e-12)
    assert next(rule.probability for rule in rules if not rule.right) == pytest.approx(1 - p, rel=1e-12)


def test_dyck_that_never_opens_is_the_empty_sentence() -> None:
    assert clean(dyck(2, 0)).terminals == ()


# Random


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("levels, symbols, rules, words", SIZES)
def test_random_has_the_sizes_asked_for_and_uses_every_symbol(
    levels: int, symbols: int, rules: int, words: int, seed: int
) -> None:
    grammar = clean(random_grammar(levels, symbols, rules, words, seed))
    names = {f"L{level}_{i}" for level in range(1, levels) for i in range(1, symbols + 1)}
    assert {left.name for left in grammar.rules} == {"S"} | names
    assert sorted(grammar.terminals, key=int) == [str(word) for word in range(1, words + 1)]
    for left, group in grammar.rules.items():
        assert len({rule.right for rule in group}) == len(group) == rules
        for rule in group:
            assert len(rule.right) in (2, 3)
            assert rule.probability == pytest.approx(1 / rules, rel=1e-12)
            below = {0 if isinstance(s, str) else level_of(s.name, levels) for s in rule.right}
            assert below == {level_of(left.name, levels) - 1}


RANDOM_3_2_2_3_1 = """\
S -> L2_2 L2_2 | L2_1 L2_1 L2_2
L2_1 -> L1_1 L1_1 L1_2 | L1_1 L1_2
L2_2 -> L1_1 L1_2 | L1_1 L1_1 L1_2
L1_1 -> '3' '2' '3' | '2' '3'
L1_2 -> '1' '1' | '3' '1'
"""


def test_random_is_that_of_its_seed_for_ever() -> None:
    assert random_grammar(3, 2, 2, 3, 1) == RANDOM_3_2_2_3_1
    assert random_grammar(3, 2, 2, 3, 2) != RANDOM_3_2_2_3_1
    assert len({random_grammar(4, 3, 2, 3, seed) for seed in range(50)}) == 50


def test_both_lengths_are_about_equally_frequent() -> None:
    text = random_grammar(6, 20, 10, 20, 0)
    lengths = [len(rule.right) for group in clean(text).rules.values() for rule in group]
    assert 0.4 < lengths.count(2) / len(lengths) < 0.6


def test_another_process_generates_the_same_text() -> None:
    code = "from grammarlab.language.generators import *; print(dyck(5, 0.3), random_grammar(4, 3, 2, 3, 7), sep='')"
    source = str(Path(grammarlab.__file__).parents[1])
    for hash_seed in ("1", "2"):
        run = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": source, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert run.stdout == dyck(5, 0.3) + random_grammar(4, 3, 2, 3, 7) + "\n"


# Arguments


def test_whole_floats_are_numbers_of_things_too() -> None:
    assert dyck(3.0, 0.25) == dyck(3, 0.25)  # type: ignore[arg-type]
    assert random_grammar(4.0, 3.0, 2.0, 3.0, 1.0) == random_grammar(4, 3, 2, 3, 1)  # type: ignore[arg-type]


GOOD: dict[str, dict[str, Any]] = {
    "dyck": {"k": 3, "p": 0.25},
    "random": {"levels": 4, "symbols": 3, "rules": 2, "words": 3, "seed": 1},
}
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("dyck", {"k": 0}, "k=0: must be at least 1"),
    ("dyck", {"k": -2.0}, "k=-2: must be at least 1"),
    ("dyck", {"k": 2.5}, "k=2.5: must be a whole number"),
    ("dyck", {"k": float("inf")}, "k=inf: must be a whole number"),
    ("dyck", {"k": float("nan")}, "k=nan: must be a whole number"),
    ("dyck", {"k": "3"}, "k=3: must be a whole number"),
    ("dyck", {"k": True}, "k=True: must be a whole number"),
    ("dyck", {"p": -0.1}, "p=-0.1: must be between 0 and 1"),
    ("dyck", {"p": 1.5}, "p=1.5: must be between 0 and 1"),
    ("dyck", {"p": float("nan")}, "p=nan: must be between 0 and 1"),
    ("dyck", {"p": "half"}, "p=half: must be a number"),
    ("random", {"levels": 0}, "levels=0: must be at least 1"),
    ("random", {"symbols": 0}, "symbols=0: must be at least 1"),
    ("random", {"rules": 0}, "rules=0: must be at least 1"),
    ("random", {"words": 0}, "words=0: must be at least 1"),
    ("random", {"seed": -1}, "seed=-1: must be at least 0"),
    ("random", {"levels": 3.5}, "levels=3.5: must be a whole number"),
    ("random", {"seed": 0.5}, "seed=0.5: must be a whole number"),
    ("random", {"rules": 37}, "rules=37: must be at most 36, the number of right sides over words=3"),
    ("random", {"rules": 37, "words": 9}, "rules=37: must be at most 36, the number of right sides over symbols=3"),
    ("random", {"symbols": 7}, "symbols=7: must be at most 6, the places for them in the level above"),
    ("random", {"words": 19}, "words=19: must be at most 18, the places for them in the level above"),
    ("random", {"levels": 1, "words": 7}, "words=7: must be at most 6, the places for them in the level above"),
]


@pytest.mark.parametrize("name, changed, message", REFUSED, ids=[message.split(":")[0] for _, _, message in REFUSED])
def test_what_cannot_be_made_is_refused_in_one_line(name: str, changed: dict[str, Any], message: str) -> None:
    GENERATORS[name](**GOOD[name])
    with pytest.raises(ValueError, match=re.escape("language.parameters." + message) + "$"):
        GENERATORS[name](**{**GOOD[name], **changed})
