"""What is known of a language: its exact sums, what is estimated of it, a picture of its lengths, a few sentences."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from grammarlab import figures
from grammarlab.config import ConfigError, LanguageConfig
from grammarlab.intervals import wilson_interval
from grammarlab.language import PCFG, GrammarError, NotEnumerableError, Quantity, from_text, written
from grammarlab.streams import Stream, stream

# Where sentences may be much longer, they are shown and tested given that they have at most so many words.
_SHOWN_LENGTH = 1_000


@dataclass(slots=True)
class Survey:
    """`facts`: what `json=true` prints; null stands for infinite or not known. Entropies in nats."""

    name: str
    facts: dict[str, Any]
    notes: list[str]
    law: list[float]  # probability of 0, 1, … words
    samples: list[str]


def read(config: LanguageConfig) -> tuple[PCFG, list[str]]:
    """The language, and what its grammar gives reason to note. Raises `ConfigError`, a line for each fault."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            text, parameters = written(config.grammar, config.generator, config.parameters)
            language = from_text(text, config.start, parameters=parameters, allow_improper=config.allow_improper)
        except ValueError as error:
            faults = error.faults if isinstance(error, GrammarError) else (str(error),)
            text = "\n".join(f"language={config.name}: {fault}" for fault in faults)
            raise ConfigError(text.replace("allow_improper", "language.allow_improper")) from None
    return language, [str(warning.message) for warning in caught]


def survey(config: LanguageConfig, samples: int, seed: int) -> Survey:
    """`samples` sentences are drawn for the share of ambiguous ones, ten are shown."""
    language, notes = read(config)
    usual = language.mean_length().value + 10 * math.sqrt(language.length_variance())
    shown = language
    if usual > _SHOWN_LENGTH and language.max_length() == math.inf:
        shown = language.truncated(_SHOWN_LENGTH)
        notes.append(f"some sentences are very long: they are drawn given at most {_SHOWN_LENGTH} words")
    share, low, high = _ambiguous_share(shown, samples, seed)
    try:
        entropy = language.entropy()
    except NotEnumerableError as error:
        entropy = Quantity(math.nan)
        notes.append(str(error))
    try:
        size = language.size()
    except NotEnumerableError as error:
        size = math.nan
        notes.append(f"the number of sentences is not known: {error}")
    facts = {
        "name": config.name,
        "start": config.start,
        "checksum": language.checksum(),
        "nonterminals": len(language.grammar.rules),
        "rules": sum(map(len, language.grammar.rules.values())),
        "words": len(language.terminals),
        "mass": language.mass,
        "spectral_radius": language.sums.spectral_radius,
        "mean_length": language.mean_length().value,
        "length_variance": language.length_variance(),
        "max_length": language.max_length(),
        "derivation_entropy": language.derivation_entropy(),
        "string_entropy": entropy.value,
        "string_entropy_stderr": entropy.stderr,
        "size": size,
        "infinite": language.max_length() == math.inf,
        "ambiguous": True if share > 0 else (False if language.unambiguous else None),
        "ambiguous_share": 0.0 if language.unambiguous else share,
        "ambiguous_share_low": 0.0 if language.unambiguous else low,
        "ambiguous_share_high": 0.0 if language.unambiguous else high,
    }
    plain = {key: None if isinstance(v, float) and not math.isfinite(v) else v for key, v in facts.items()}
    drawn = shown.sample(10, stream(seed, Stream.truth))
    return Survey(config.name, plain, notes, _law(language), [" ".join(words) for words in drawn])


def _ambiguous_share(language: PCFG, samples: int, seed: int) -> tuple[float, float, float]:
    """Of sentences with more than one derivation, with Wilson's 95 % interval."""
    drawn = language.sample_indices(samples, stream(seed, Stream.truth))
    words = drawn[drawn >= 0]
    ambiguous = int(language.engine.ambiguous(words, np.cumsum((drawn >= 0).sum(1))).sum())
    return (ambiguous / samples, *wilson_interval(ambiguous, samples))


def _law(language: PCFG) -> list[float]:
    """Up to the longest, or to what is hardly ever longer."""
    mean, variance = language.mean_length().value, language.length_variance()
    usual = 200.0 if math.isinf(variance) else mean + 5 * math.sqrt(variance) + 5
    return language.length_law(int(min(language.max_length(), usual, 5_000))).tolist()


def render(result: Survey) -> RenderableType:
    """For a terminal."""
    facts = result.facts
    table = Table(
        title=f"{result.name} from {facts['start']}",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_header=False,
    )
    table.add_column("")
    table.add_column("", justify="right")
    table.add_column("")
    stderr = facts["string_entropy_stderr"]
    ambiguous = {True: "ambiguous", False: "proved unambiguous", None: "not proved unambiguous"}[facts["ambiguous"]]
    for label, value, remark in (
        ("rules", f"{facts['rules']}", f"{facts['nonterminals']} nonterminals, checksum {facts['checksum']}"),
        ("words", f"{facts['words']}", "in the vocabulary"),
        ("mass", _number(facts["mass"]), "probability that a derivation ends"),
        ("spectral radius", _number(facts["spectral_radius"]), "of the mean matrix"),
        ("length", _number(facts["mean_length"]), f"mean; variance {_number(facts['length_variance'])}"),
        ("longest", _number(facts["max_length"]), "words"),
        ("sentences", "infinite" if facts["infinite"] else _number(facts["size"], "unknown"), ""),
        ("entropy of a derivation", _number(facts["derivation_entropy"]), "nats, exact"),
        (
            "entropy of a sentence",
            _number(facts["string_entropy"], "infinite or unknown"),
            ""
            if facts["string_entropy"] is None
            else "nats, exact"
            if stderr is None
            else f"nats, estimate ± {stderr:.2g}",
        ),
        (
            "share of ambiguous ones",
            f"{facts['ambiguous_share']:.4f}",
            ambiguous
            if facts["ambiguous"] is False
            else f"{ambiguous}; 95 % {facts['ambiguous_share_low']:.4f}–{facts['ambiguous_share_high']:.4f}",
        ),
    ):
        table.add_row(label, value, remark)
    notes = [Text(f"note: {note}", style="yellow") for note in result.notes]
    shown = [Text(sample if len(sample) <= 100 else sample[:99] + "…", no_wrap=True) for sample in result.samples]
    return Group(table, *notes, Text("ten sentences", style="bold"), *(text or Text("(empty)") for text in shown))


def _number(value: float | None, missing: str = "infinite") -> str:
    return missing if value is None else f"{value:.6g}"


def save_figure(result: Survey, path: Path) -> None:
    title = f"{result.name} from {result.facts['start']}"
    figures.save(figures.length_law(result.law, result.facts["mean_length"], title), path)
