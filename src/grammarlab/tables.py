"""The tables of a run's folder, without torch: their columns, written and read back.

| table | a row for each |
|---|---|
| metrics | step at which something was logged: the value of each measure, null where it was not taken |
| samples | generated sentence that is recorded; `wrong_at`: the first word that cannot stand there, or the number of |
|         | words where the end is what is wrong |
| positions | predicted token of a sentence: nats, means over the true sentences that get there |
| sentences | sentence of the language, or of those drawn from it: its log-probability in nats under p and q |
| temperatures | temperature: exact validity and coverage; only where the language is written out |
| attention | layer, head, query and key of one sentence; `visible`: whether the mask lets the query look at the key |
| next_words | token after each prefix of that sentence: its probability in the language and for the model |
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from grammarlab.measures import measure_name

SHOWN_BEGIN, SHOWN_END = "(begin)", "(end)"  # the tokens that are no words

SCHEMAS: dict[str, dict[str, Any]] = {
    "samples": {
        "temperature": pl.Float64,
        "text": pl.String,
        "valid": pl.String,
        "log_prob_language": pl.Float64,
        "log_prob_model": pl.Float64,
        "wrong_at": pl.Int64,
    },
    "positions": {
        "position": pl.Int64,
        "reached": pl.Float64,
        "entropy": pl.Float64,
        "loss": pl.Float64,
        "kl": pl.Float64,
    },
    "sentences": {
        "text": pl.String,
        "log_prob_language": pl.Float64,
        "log_prob_model": pl.Float64,
        "exact": pl.String,
    },
    "temperatures": {"temperature": pl.Float64, "validity": pl.Float64, "coverage": pl.Float64},
    "attention": {
        "layer": pl.Int64,
        "head": pl.Int64,
        "query": pl.Int64,
        "key": pl.Int64,
        "query_word": pl.String,
        "key_word": pl.String,
        "weight": pl.Float64,
        "visible": pl.Boolean,
    },
    "next_words": {
        "position": pl.Int64,
        "prefix": pl.String,
        "word": pl.String,
        "language": pl.Float64,
        "model": pl.Float64,
    },
}


def table(name: str, rows: Iterable[Sequence[Any]] = ()) -> pl.DataFrame:
    """One of the tables above, from its rows."""
    return pl.DataFrame(list(rows), schema=SCHEMAS[name], orient="row")


def write(folder: Path, tables: Mapping[str, pl.DataFrame]) -> None:
    """As NAME.csv. A text is always in quotes: one without words is no missing value then."""
    for name, content in tables.items():
        content.write_csv(folder / f"{name}.csv", quote_style="non_numeric")


def read(folder: Path, name: str) -> pl.DataFrame | None:
    """A table of a run's folder; None where the run did not get so far. Raises `ValueError` for a damaged file."""
    path = folder / f"{name}.csv"
    if not path.exists():
        return None
    try:
        if name != "metrics":
            found = pl.read_csv(path, schema=SCHEMAS[name])
            return found.with_columns(pl.col(pl.String).fill_null(""))  # a text without words
        with path.open(encoding="utf-8", newline="") as file:
            columns = next(csv.reader(file), [])
        return pl.read_csv(path, schema={c: pl.Int64 if c == "step" else pl.Float64 for c in columns})
    except (pl.exceptions.PolarsError, OSError, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"{path}: cannot be read ({reason})") from None


def sampled(metrics: Mapping[str, float], temperatures: Sequence[float]) -> pl.DataFrame:
    """The sampled validity and coverage at each temperature with the ends of their 95 % intervals."""
    rows = [
        (t, name, *(metrics[measure_name("sampled", t, name + end)] for end in ("", "_low", "_high")))
        for t in temperatures
        for name in ("validity", "coverage")
        if measure_name("sampled", t, name) in metrics
    ]
    schema = {"temperature": pl.Float64, "measure": pl.String}
    return pl.DataFrame(
        rows, schema={**schema, "value": pl.Float64, "low": pl.Float64, "high": pl.Float64}, orient="row"
    )
