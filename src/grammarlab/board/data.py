"""What a page shows, as tables, from the folders of runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from grammarlab import sweep, tables
from grammarlab.sweep import Comparison, Difference, Run, Setting, written

# So many settings that their lines can be told apart; a page of more shows the first ones, and says so.
SHOWN_SETTINGS = 12
SHOWN_SAMPLES = 2_000
MEASURES = ("val/excess_loss", "truth/kl", "truth/total_variation", "truth/validity", "truth/coverage")


@dataclass(frozen=True, slots=True)
class Board:
    """`settings`: those that are drawn, of all in `comparison`. Frames have the columns `setting` and `seed`."""

    title: str
    runs: list[Run]
    comparison: Comparison
    settings: list[Setting]
    measures: list[str]
    baseline: str | None
    differences: list[Difference]

    @property
    def states(self) -> dict[str, int]:
        counts = Counter(run.status for run in self.runs)
        return {
            state: counts[state] for state in ("finished", "running", "failed", "interrupted", "dev") if counts[state]
        }

    @property
    def kind(self) -> pl.Enum:
        """Of the column `setting`: so that a setting has the same colour everywhere."""
        return pl.Enum([setting.label for setting in self.settings])

    def marked(self, setting: Setting, seed: int, frame: pl.DataFrame) -> pl.DataFrame:
        return frame.with_columns(setting=pl.lit(setting.label, dtype=self.kind), seed=pl.lit(seed, dtype=pl.Int64))

    def table(self, name: str, *, seeds: int | None = None) -> pl.DataFrame | None:
        """A table of `grammarlab.tables` of all runs that are drawn, or of a setting's first seeds; None without any.

        Raises `ValueError` for a damaged file.
        """
        found = []
        for setting in self.settings:
            for seed, run in list(zip(setting.seeds, setting.runs, strict=True))[:seeds]:
                content = tables.read(run.folder, name)
                if content is not None:
                    found.append(self.marked(setting, seed, content))
        return pl.concat(found, how="diagonal") if found else None

    def sampled(self) -> pl.DataFrame:
        return pl.concat(
            self.marked(setting, seed, tables.sampled(run.metrics, run.options["generation.temperatures"]))
            for setting in self.settings
            for seed, run in zip(setting.seeds, setting.runs, strict=True)
        )

    @property
    def swept(self) -> list[str]:
        """The options in which the settings differ, without those that say the same in other words."""
        kept: dict[str, list[Any]] = {}
        for option in self.settings[0].options if self.settings else ():
            values = [setting.options[option] for setting in self.comparison.settings]
            if not any(_same_partition(values, others) for others in kept.values()):
                kept[option] = values
        return list(kept)

    def by_option(self, option: str) -> pl.DataFrame:
        """Rows of `figures.measure_by_option`, of all settings."""
        rows = []
        for setting in self.comparison.settings:
            others = ", ".join(f"{name}={written(setting.options[name])}" for name in self.swept if name != option)
            for seed, run in zip(setting.seeds, setting.runs, strict=True):
                value = written(setting.options[option])
                rows += [(value, others, seed, m, run.metrics[m]) for m in self.measures if m in run.metrics]
        kinds = {"option": pl.String, "others": pl.String, "seed": pl.Int64, "measure": pl.String, "value": pl.Float64}
        return pl.DataFrame(rows, schema=kinds, orient="row")

    def coordinates(self) -> pl.DataFrame:
        """Rows of `figures.parallel_coordinates`, of all settings."""
        rows: list[tuple[Any, ...]] = []
        for setting in self.comparison.settings:
            shade = next((setting.measures[m].mean for m in self.measures if m in setting.measures), None)
            for option in self.swept:
                value = setting.options[option]
                number = float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
                rows.append((setting.label, option, written(value), number, shade))
            for measure in self.measures:
                if measure in setting.measures:
                    mean = setting.measures[measure].mean
                    rows.append((setting.label, measure, f"{mean:.4g}", mean, shade))
        kinds = {"setting": pl.String, "dimension": pl.String, "label": pl.String}
        return pl.DataFrame(rows, schema={**kinds, "number": pl.Float64, "shade": pl.Float64}, orient="row")


def _same_partition(first: Sequence[Any], second: Sequence[Any]) -> bool:
    """Whether each tells apart exactly what the other does."""
    pairs = {(written(a), written(b)) for a, b in zip(first, second, strict=True)}
    return len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs})


def gather(paths: Sequence[Path], *, baseline: str | None = None) -> Board:
    """Everything but the tables, which are read when they are asked for.

    baseline: a setting's name, against which the others are compared; else the first. Raises `ValueError` where there
    is no run, a damaged one, or no such setting.
    """
    runs = sweep.read_runs(paths)
    comparison = sweep.compare(runs)
    measures = [m for m in MEASURES if any(m in setting.measures for setting in comparison.settings)]
    base = baseline
    if base is None and len(comparison.settings) > 1:
        base = comparison.settings[0].label
    return Board(
        title=", ".join(path.resolve().name for path in paths[:3]) + (" …" if len(paths) > 3 else ""),
        runs=runs,
        comparison=comparison,
        settings=comparison.settings[:SHOWN_SETTINGS],
        measures=measures,
        baseline=base,
        differences=sweep.differences(comparison, base, measures) if base is not None and comparison.settings else [],
    )
