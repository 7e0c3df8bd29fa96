"""Languages whose every probability is known. The bottom floor: it imports nothing of torch, Lightning or Hydra.

from grammarlab.language import load
captions = load("captions")
captions.entropy().value          # 2.0794...: 3 ln 2 nats
"""

from __future__ import annotations

from pathlib import Path

import yaml

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
]


def from_text(text: str, start: str) -> Language:
    """The language of a grammar in the notation of `grammarlab.language.grammar`. Raises `GrammarError`."""
    try:
        return PCFG(parse_grammar(text, start))
    except RecursionError:
        raise GrammarError("symbols are nested deeper than about a thousand levels") from None


def load(name: str, start: str | None = None) -> Language:
    """A language of the library by its name, from another start symbol if one is given.

    Raises `ValueError` for an unknown name, `GrammarError` for a start symbol that the grammar lacks.
    """
    folder = library_folder()
    entries = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.yaml"))}
    known = {stem: entry for stem, entry in entries.items() if entry["grammar"]}  # `file` has none of its own
    if name not in known:
        raise ValueError(f"no language {name!r} in the library; it has {', '.join(known)}")
    return from_text(known[name]["grammar"], start or known[name]["start"])


def library_folder() -> Path:
    """`conf/language`: inside the package in a wheel, at the root of a checkout."""
    here = Path(__file__).resolve().parent.parent
    candidates = [here / "conf" / "language", here.parent.parent / "conf" / "language"]
    return next(path for path in candidates if path.is_dir())
