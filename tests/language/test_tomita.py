"""Tomita's seven languages: the grammar of each derives exactly the words that its definition in plain terms allows."""

import inspect
import re
from collections.abc import Callable
from fractions import Fraction
from itertools import groupby, product
from typing import Any

import numpy as np
import pytest
import yaml

from grammarlab.language import library_folder
from grammarlab.language.grammar import Grammar, Nonterminal, parse_grammar


def odd_zeros_after_odd_ones(word: str) -> bool:
    runs = [(letter, len(list(run)) % 2) for letter, run in groupby(word)]
    return any(run == ("1", 1) and ("0", 1) in runs[i:] for i, run in enumerate(runs))


DEFINITIONS: dict[str, Callable[[str], bool]] = {
    "tomita1": lambda word: "0" not in word,
    "tomita2": lambda word: word == "10" * (len(word) // 2),
    "tomita3": lambda word: not odd_zeros_after_odd_ones(word),
    "tomita4": lambda word: "000" not in word,
    "tomita5": lambda word: word.count("0") % 2 == 0 and word.count("1") % 2 == 0,
    "tomita6": lambda word: (word.count("0") - word.count("1")) % 3 == 0,
    "tomita7": lambda word: re.fullmatch("0*1*0*1*", word) is not None,
}
STATES = {"tomita1": 1, "tomita2": 2, "tomita3": 4, "tomita4": 3, "tomita5": 4, "tomita6": 3, "tomita7": 4}
WORDS = ["".join(letters) for length in range(9) for letters in product("01", repeat=length)]


def read(name: str, stop: float | None = None) -> tuple[Grammar, float]:
    """The grammar and its `stop`, as the library has it or another one."""
    entry = yaml.safe_load((library_folder() / f"{name}.yaml").read_text(encoding="utf-8"))
    assert list(entry["parameters"]) == ["stop"]
    stop = entry["parameters"]["stop"] if stop is None else stop
    text = entry["grammar"]
    options: dict[str, Any] = {}
    if "parameters" in inspect.signature(parse_grammar).parameters:
        options["parameters"] = {"stop": stop}
    else:
        value = Fraction(str(stop))
        for expression, number in {"stop": value, "1-stop": 1 - value, "(1-stop)/2": (1 - value) / 2}.items():
            text = text.replace(f"[{expression}]", f"[{number}]")
    return parse_grammar(text, entry["start"], **options), stop


def step(grammar: Grammar, states: set[Nonterminal], letter: str) -> set[Nonterminal]:
    rules = [rule for state in states for rule in grammar.rules[state]]
    return {s for rule in rules if rule.right[:1] == (letter,) for s in rule.right[1:] if isinstance(s, Nonterminal)}


def derives(grammar: Grammar, word: str, start: Nonterminal | None = None) -> bool:
    states = {start or grammar.start}
    for letter in word:
        states = step(grammar, states, letter)
    return any(rule.right == () for state in states for rule in grammar.rules[state])


@pytest.mark.parametrize("name", DEFINITIONS)
def test_the_grammar_derives_the_words_of_the_definition_and_no_others(name: str) -> None:
    grammar, _ = read(name)
    assert [word for word in WORDS if derives(grammar, word)] == list(filter(DEFINITIONS[name], WORDS))


@pytest.mark.parametrize("word", ["10", "101", "1110", "10001", "1001000", "0111001101", "11011100110"])
def test_the_odd_run_of_zeros_may_come_long_after_the_odd_run_of_ones(word: str) -> None:
    """The last two tell this reading, the usual one, from that of adjacent runs."""
    assert odd_zeros_after_odd_ones(word)
    assert not derives(read("tomita3")[0], word)


@pytest.mark.parametrize("name", DEFINITIONS)
def test_the_rules_are_those_of_the_minimal_automaton_without_its_dead_state(name: str) -> None:
    grammar, _ = read(name)
    assert len(grammar.rules) == STATES[name]
    for group in grammar.rules.values():
        for rule in group:
            match rule.right:
                case () | ("0" | "1", Nonterminal()):
                    pass
                case _:
                    pytest.fail(f"{rule} is not of a right-linear grammar with one letter a rule")
        assert len({rule.right[:1] for rule in group}) == len(group)  # deterministic
    # Minimal: any two states differ in some word that only one of them accepts from there on.
    futures = {
        state: tuple(derives(grammar, word, state) for word in WORDS if len(word) <= 4) for state in grammar.rules
    }
    assert len(set(futures.values())) == STATES[name]
    assert all(any(future) for future in futures.values())  # none is dead


@pytest.mark.parametrize("stop", [None, 0.05, 0.5])
@pytest.mark.parametrize("name", DEFINITIONS)
def test_accepting_states_stop_with_the_parameter_and_letters_share_the_rest_evenly(
    name: str, stop: float | None
) -> None:
    grammar, stop = read(name, stop)
    for group in grammar.rules.values():
        end = sum(rule.probability for rule in group if not rule.right)
        letters = [rule.probability for rule in group if rule.right]
        assert end in (0, pytest.approx(stop, rel=1e-12))
        assert letters == pytest.approx([(1 - end) / len(letters)] * len(letters), rel=1e-12)


def tomita3_mean(stop: float) -> float:
    c, d = 1 - stop, 1 + 3 * (1 - stop) / (2 * stop)
    return (c + c**2 / 2 + c**2 * d / 4) / (1 - c / 2 - c**2 / 4)


MEAN_LENGTH: dict[str, Callable[[float], float]] = {
    "tomita1": lambda stop: (1 - stop) / stop,
    "tomita2": lambda stop: 2 * (1 - stop) / stop,
    "tomita3": tomita3_mean,
    "tomita4": lambda stop: (1 - stop) / stop,
    "tomita5": lambda stop: 4 * (1 - stop) / stop,
    "tomita6": lambda stop: 3 * (1 - stop) / stop,
    "tomita7": lambda stop: (1 - stop) / stop,
}


@pytest.mark.parametrize("stop", [None, 0.05, 0.5])
@pytest.mark.parametrize("name", DEFINITIONS)
def test_the_mean_length_is_that_of_the_formula(name: str, stop: float | None) -> None:
    grammar, stop = read(name, stop)
    states = list(grammar.rules)
    move = np.zeros((len(states), len(states)))
    for state, group in grammar.rules.items():
        for rule in group:
            if rule.right:
                target = rule.right[1]
                assert isinstance(target, Nonterminal)
                move[states.index(state), states.index(target)] += rule.probability
    expected = np.linalg.solve(np.eye(len(states)) - move, move.sum(axis=1))
    assert expected[states.index(grammar.start)] == pytest.approx(MEAN_LENGTH[name](stop), rel=1e-9)


def test_the_mean_length_of_the_third_at_its_default() -> None:
    assert tomita3_mean(0.2) == pytest.approx(56 / 11, rel=1e-12)
