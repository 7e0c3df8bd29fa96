"""What `src/language.py` says of a language."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Ended

Command = Callable[..., Ended]


def facts(command: Command, *arguments: str) -> dict[str, object]:
    ended = command("language", *arguments, "json=true", "samples=200")
    assert ended.status == 0, ended.err
    (line,) = ended.out.splitlines()
    found: dict[str, object] = json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    return found


def test_a_finite_language(command: Command) -> None:
    found = facts(command, "language=captions")
    assert (found["size"], found["mean_length"], found["mass"], found["spectral_radius"]) == (8, 6, 1, 0)
    assert found["string_entropy"] == pytest.approx(3 * math.log(2), rel=1e-12)
    assert found["string_entropy_stderr"] is None
    assert found["ambiguous"] is False


def test_an_infinite_one_has_null_for_what_has_no_number(command: Command) -> None:
    found = facts(command, "language=dyck1")
    assert found["infinite"] is True
    assert (found["size"], found["max_length"]) == (None, None)
    assert found["mean_length"] == pytest.approx(2, rel=1e-12)


def test_an_ambiguous_one_says_that_its_entropy_is_an_estimate(command: Command) -> None:
    found = facts(command, "language=double")
    assert found["ambiguous"] is True
    share = found["ambiguous_share"]
    assert found["ambiguous_share_low"] < share < found["ambiguous_share_high"]  # type: ignore[operator]
    # aa has one parse, and no other than a and aa has one: 1 - 3/4 - 9/64.
    assert found["ambiguous_share_low"] < 7 / 64 < found["ambiguous_share_high"]  # type: ignore[operator]
    assert isinstance(found["string_entropy_stderr"], float)
    assert found["derivation_entropy"] / math.log(2) == pytest.approx(1.622556, abs=1e-6)  # type: ignore[operator]


def test_one_that_loses_mass_is_refused_with_it_unless_allowed(command: Command) -> None:
    ended = command("language", "language=double", "language.parameters.p=0.6")
    assert ended.status == 1
    assert "improper grammar: a derivation from S ends with probability 0.666667 only" in ended.err
    assert len(ended.err.splitlines()) == 1
    found = facts(command, "language=double", "language.parameters.p=0.6", "language.allow_improper=true")
    assert found["mass"] == pytest.approx(2 / 3, rel=1e-12)


def test_a_critical_one_has_no_mean(command: Command) -> None:
    found = facts(command, "language=dyck1", "language.parameters.p=0.5")
    assert (found["mean_length"], found["derivation_entropy"], found["mass"]) == (None, None, 1)


def test_a_grammar_from_a_file_and_its_picture(command: Command) -> None:
    Path("mine.grammar").write_text("S -> 'a' S 'b' [p] | [1-p]\n")
    ended = command("language", "grammar=mine.grammar", "start=S", "+language.parameters.p=0.5", "samples=50")
    assert ended.status == 0, ended.err
    assert Path(ended.last_line).read_bytes().startswith(b"\x89PNG")
    assert "proved unambiguous" in ended.out
    assert "(empty)" in ended.out


def test_the_checksum_is_that_of_the_rules_not_of_their_layout(command: Command) -> None:
    Path("one.grammar").write_text("S -> 'a' S [1/4] | 'b' [3/4]\n")
    Path("two.grammar").write_text("# the same\nS -> 'b' [0.75]\nS -> 'a' S [.25]\n")
    Path("three.grammar").write_text("S -> 'a' S [1/5] | 'b' [4/5]\n")
    one, two, three = (facts(command, f"grammar={name}.grammar")["checksum"] for name in ("one", "two", "three"))
    assert one == two != three


def test_every_fault_is_found_at_once(command: Command) -> None:
    Path("mine.grammar").write_text("S -> 'a' X [.5] | 'b' [.4]\nY -> [2]\nS 'a'\nZ -> 'c' [x]\n")
    ended = command("language", "grammar=mine.grammar")
    assert ended.status == 1
    assert ended.err.splitlines() == [
        "error: language=mine: line 3: expected `Left -> right side`, found \"S 'a'\"",
        "error: language=mine: line 4: [x] is no probability; write 0.25, 1e-3 or 1/4 (x: there are no parameters)",
    ]
    Path("mine.grammar").write_text("S -> 'a' X [.5] | 'b' [.4]\nY -> [2]\n")
    ended = command("language", "grammar=mine.grammar")
    assert ended.err.splitlines() == [
        "error: language=mine: undefined symbol X in `S -> 'a' X`: give it a rule, or quote it if it is a word",
        "error: language=mine: the probabilities of S sum to 0.9, not to 1 (within 1e-06)",
        "error: language=mine: probability 2 of `Y -> ` is not between 0 and 1",
        "error: language=mine: the probabilities of Y sum to 2, not to 1 (within 1e-06)",
    ]
    ended = command("train", "language=file", "language.file=mine.grammar", "language.start=S")
    assert ended.err.startswith("error: language=mine: undefined symbol X")
    assert ended.err.endswith("if it is a word (and 3 more: src/language.py lists them)\n")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["grammar=none.grammar"], "grammar=none.grammar: No such file or directory"),
        (["language=captions", "start=Size"], "start=Size: needs grammar=FILE; else language.start"),
        (["language=dyck", "language.parameters.k=0"], "language.parameters.k=0: must be at least 1"),
        (["language=tail", "language.parameters.p=1.5"], "probability 1.5 of `S -> 'a' S` is not between 0 and 1"),
        (["samples=0"], "samples=0: must be at least 1"),
    ],
)
def test_bad_input_is_said_in_a_line(command: Command, arguments: list[str], message: str) -> None:
    ended = command("language", *arguments)
    assert ended.status == 1
    assert message in ended.err
    assert all(line.startswith("error: ") for line in ended.err.splitlines())  # a line a fault
