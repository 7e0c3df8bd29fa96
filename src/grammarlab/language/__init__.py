"""Languages whose every probability is known. The bottom floor: it imports nothing of torch, Lightning or Hydra.

from grammarlab.language import load
captions = load("captions")
captions.entropy().value          # 2.0794...: 3 ln 2 nats
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from pathlib import Path

import yaml

from grammarlab.language.generators import GENERATORS
from grammarlab.language.grammar import (
    BEGIN,
    END,
    PAD,
    SPECIAL_TOKENS,
    GrammarError,
    GrammarWarning,
    parse_grammar,
)
from grammarlab.language.pcfg import PCFG
from grammarlab.language.protocol import Language, NotEnumerableError, Quantity, Sentence
from grammarlab.language.table import SentenceTable

__all__ = [
    "BEGIN",
    "END",
    "PAD",
    "PCFG",
    "SPECIAL_TOKENS",
    "GrammarError",
    "GrammarWarning",
    "Language",
    "NotEnumerableError",
    "Quantity",
    "Sentence",
    "SentenceTable",
    "from_text",
    "library_folder",
    "load",
    "written",
]


def from_text(
    text: str, start: str, *, parameters: Mapping[str, float] | None = None, allow_improper: bool = False
) -> PCFG:
    """The language of a grammar in the notation of `grammarlab.language.grammar`.

    Raises `GrammarError`, also for an improper grammar, some of whose derivations never end, unless it is to be taken
    given that they end.
    """
    return PCFG(parse_grammar(text, start, parameters), allow_improper=allow_improper)


def load(name: str, start: str | None = None, **parameters: float) -> PCFG:
    """A language of the library by its name, from another start symbol or with other parameters if they are given.

    Raises `ValueError` for an unknown name or parameter, `GrammarError` for a start symbol that the grammar lacks.
    """
    folder = library_folder()
    entries = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.yaml"))}
    entry = entries.get(name)
    if entry is None or "file" in entry:  # `file` has no grammar of its own
        known = ", ".join(stem for stem, other in entries.items() if "file" not in other)
        raise ValueError(f"no language {name!r} in the library; it has {known}")
    values = entry.get("parameters", {}) | parameters
    if unknown := sorted(values.keys() - entry.get("parameters", {}).keys()):
        raise ValueError(
            f"{name} has no parameter {unknown[0]}; it has {', '.join(entry.get('parameters', {})) or 'none'}"
        )
    text, values = written(entry.get("grammar"), entry.get("generator"), values)
    with warnings.catch_warnings():
        if start is not None:  # a smaller task of the same grammar leaves out what is above it, on purpose
            warnings.filterwarnings("ignore", message="unreachable from", category=GrammarWarning)
        return from_text(text, start or entry["start"], parameters=values)


def written(
    grammar: str | None, generator: str | None, parameters: Mapping[str, float]
) -> tuple[str, Mapping[str, float]]:
    """The text of a grammar, and the parameters that it still has: none if a generator has used them.

    Raises `ValueError` for parameters that the generator does not allow.
    """
    if generator is None:
        assert grammar is not None
        return grammar, parameters
    try:
        return GENERATORS[generator](**parameters), {}
    except TypeError:
        wanted = ", ".join(inspect.signature(GENERATORS[generator]).parameters)
        raise ValueError(f"language.parameters of the generator {generator} are {wanted}") from None


def library_folder() -> Path:
    """`conf/language`: inside the package in a wheel, at the root of a checkout."""
    here = Path(__file__).resolve().parent.parent
    candidates = [here / "conf" / "language", here.parent.parent / "conf" / "language"]
    return next(path for path in candidates if path.is_dir())
