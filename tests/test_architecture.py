"""The house: every module has a floor and imports only from lower ones."""

import ast
from collections.abc import Iterator
from pathlib import Path

from conftest import ROOT

SRC = ROOT / "src" / "grammarlab"

FLOOR = {
    "language": 0,
    "config": 0,
    "cache": 0,
    "figures": 1,
    "streams": 0,
    "intervals": 0,
    "measures": 0,
    "tables": 1,
    "vocabulary": 1,
    "model": 1,
    "record": 1,
    "data": 2,
    "compiled": 2,
    "gpt2": 2,
    "generation": 3,
    "evaluation": 4,
    "report": 1,
    "survey": 2,
    "task": 5,
    "parts": 5,
    "callbacks": 6,
    "tracking": 6,
    "findings": 6,
    "sweep": 6,
    "prompting": 6,
    "run": 7,
    "terminal": 7,
    "board": 8,
    "benchmark": 8,
    "options": 8,
    "dashboard": 7,
    "cli": 9,
    "commands": 10,
}
ABOVE_TORCH = {
    "tables",
    "language",
    "config",
    "figures",
    "streams",
    "vocabulary",
    "record",
    "sweep",
    "board",
    "cli",
    "commands",
}  # those that must not need it
KNOWS_HYDRA = {"cli", "commands", "options"}


def module_of(path: Path) -> str:
    return path.relative_to(SRC).parts[0].removesuffix(".py")


def imported_names(path: Path, *, top_level_only: bool = False) -> Iterator[str]:
    tree = ast.parse(path.read_text())
    for node in tree.body if top_level_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: absolute imports only"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_every_module_has_a_floor() -> None:
    assert {module_of(path) for path in SRC.rglob("*.py")} - {"__init__"} == set(FLOOR)


def test_imports_only_go_down() -> None:
    for path in SRC.rglob("*.py"):
        for name in imported_names(path):
            target = name.split(".")[1] if name.startswith("grammarlab.") else None
            if target is None or target == module_of(path):
                continue
            assert FLOOR[target] < FLOOR[module_of(path)], f"{module_of(path)} imports {target}"


def test_what_answers_at_once_imports_nothing_heavy() -> None:
    for path in SRC.rglob("*.py"):
        if module_of(path) in ABOVE_TORCH:
            heavy = {name.split(".")[0] for name in imported_names(path, top_level_only=True)}
            assert not heavy & {"torch", "lightning", "wandb"}, f"{path.name}: {heavy}"


def test_only_the_top_knows_hydra() -> None:
    for path in SRC.rglob("*.py"):
        if module_of(path) not in KNOWS_HYDRA:
            assert not any(name.split(".")[0] == "hydra" for name in imported_names(path)), path.name


def test_modules_stay_readable() -> None:
    for path in SRC.rglob("*.py"):
        lines = len(path.read_text().splitlines())
        assert lines <= 450, f"{path.name} has {lines} lines: make it a folder of rooms"
