"""Many runs as one result: a row for each run as a data frame, or for each setting with intervals over its seeds.

    frame = load("outputs/sweeps/SWEEP")
    frame.filter(pl.col("status") == "finished").group_by("model.causal").agg(pl.col("truth/kl").mean())

Frames are those of polars: a measure that was not taken is null and left out of a mean, one that is not a number makes
the mean NaN. Where the two are the same thing, as in pandas, a run that diverged would vanish from its mean in silence.
"""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import yaml
from rich import box
from rich.table import Table

from grammarlab.intervals import bootstrap_interval, mean_and_half
from grammarlab.record import is_running

# What a setting is shown by when nothing else is asked for.
MEASURES = ("val/excess_loss", "truth/kl", "truth/validity", "truth/coverage")

# Options in which the runs of one setting may differ: the seed, and what changes no number.
_NOT_A_SETTING = (
    "seed",
    "name",
    "group",
    "tags",
    "checkpoint",
    "torch_threads",
    "logger",
    "trainer.enable_progress_bar",
)


@dataclass(frozen=True, slots=True)
class Run:
    """What a run's folder says."""

    folder: Path
    name: str
    status: str
    error: str | None
    options: dict[str, Any]  # flat: `model.width`
    metrics: dict[str, float]
    seconds: float | None = None
    commit: str | None = None

    @property
    def finished(self) -> bool:
        return self.status == "finished"


def load(path: str | Path | Sequence[str | Path]) -> pl.DataFrame:
    """A row for each run in a folder or several, each a run or a folder of runs.

    Columns: `run` (its folder), `name`, `status` (`finished`, `running`, `failed`, `interrupted`, `dev`), `error`,
    `seconds`, `commit`, `repeat` (another run before it has the same options and seed: no new evidence), each option
    by its name (`model.width`), each measure (`truth/kl`). Only a finished run has measures; all others have nulls.

    Raises `ValueError` where there is no run, or a damaged one.
    """
    runs = read_runs([path] if isinstance(path, (str, Path)) else path)
    seen: set[tuple[tuple[str, str], ...]] = set()
    repeats = []
    for run in runs:
        key = tuple((name, _key(value)) for name, value in run.options.items() if name == "seed" or is_setting(name))
        repeats.append(run.finished and key in seen)
        if run.finished:
            seen.add(key)
    options = list(dict.fromkeys(name for run in runs for name in run.options if name not in _ABOUT_A_RUN))
    measures = list(dict.fromkeys(name for run in runs for name in run.metrics))
    return pl.DataFrame(
        [
            pl.Series("run", [str(run.folder) for run in runs]),
            pl.Series("name", [run.name for run in runs]),
            pl.Series("status", [run.status for run in runs]),
            pl.Series("error", [run.error for run in runs], dtype=pl.String),
            pl.Series("seconds", [run.seconds for run in runs], dtype=pl.Float64),
            pl.Series("commit", [run.commit for run in runs], dtype=pl.String),
            pl.Series("repeat", repeats),
            *(_option_column(name, [run.options.get(name) for run in runs]) for name in options),
            *(
                pl.Series(name, [run.metrics.get(name) if run.finished else None for run in runs], dtype=pl.Float64)
                for name in measures
            ),
        ]
    )


_ABOUT_A_RUN = ("name",)  # options that the columns of the same name say better


def _option_column(name: str, values: Sequence[Any]) -> pl.Series:
    """Numbers as numbers; values of several kinds, and lists, as they are written."""
    kinds = {type(value) for value in values if value is not None}
    if kinds == {int, float}:
        return pl.Series(name, [None if value is None else float(value) for value in values])
    if kinds in ({bool}, {int}, {float}, {str}):
        return pl.Series(name, values)
    return pl.Series(name, [None if value is None else written(value) for value in values], dtype=pl.String)


def read_runs(paths: Sequence[str | Path]) -> list[Run]:
    """The runs in the given folders, each a run or a folder of runs. Raises `ValueError` where there is none."""
    runs: list[Run] = []
    for path in map(Path, paths):
        if not path.is_dir():
            raise ValueError(f"{path}: no such folder")
        found = [path] if (path / "results.json").exists() else _job_folders(path)
        if not found:
            raise ValueError(f"{path}: holds no run (a run has a results.json)")
        runs += [_load_run(folder) for folder in found]
    return runs


def _job_folders(path: Path) -> list[Path]:
    folders = [file.parent for file in path.glob("*/results.json")]
    return sorted(folders, key=lambda f: (not f.name.isdigit(), int(f.name) if f.name.isdigit() else 0, f.name))


def _load_run(folder: Path) -> Run:
    try:
        results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
        config_file = folder / "config.yaml"
        config = yaml.safe_load(config_file.read_text(encoding="utf-8")) if config_file.exists() else {}
        running = results["status"] == "interrupted" and is_running(folder)
        return Run(
            folder,
            results.get("name") or folder.name,
            "running" if running else results["status"],
            None if running else results.get("error"),
            _flat(config),
            results["metrics"],
            results.get("seconds"),
            results.get("commit"),
        )
    except (ValueError, KeyError, yaml.YAMLError) as error:
        raise ValueError(f"{folder}: results.json or config.yaml cannot be read ({type(error).__name__})") from None


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in config.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over `n` seeds; `half` is half the width of its 95 % interval, None for a single seed."""

    mean: float
    half: float | None
    values: tuple[float, ...]

    def __str__(self) -> str:
        return f"{self.mean:.4g}" if self.half is None else f"{self.mean:.4g}\n± {self.half:.2g}"


@dataclass(frozen=True, slots=True)
class Setting:
    """The finished runs whose options agree, seeds aside."""

    options: dict[str, Any]  # those in which the settings differ
    seeds: tuple[int, ...]
    measures: dict[str, Interval]
    runs: tuple[Run, ...]  # one for each seed

    @property
    def label(self) -> str:
        return ", ".join(self.lines)

    @property
    def lines(self) -> list[str]:
        return [f"{name}={written(value)}" for name, value in self.options.items()] or ["all runs"]


@dataclass(frozen=True, slots=True)
class Comparison:
    settings: list[Setting]
    unfinished: list[Run]
    notes: list[str]


def compare(runs: Sequence[Run]) -> Comparison:
    """Group the finished runs by setting. A seed that ran twice in one setting counts once: it is no new evidence."""
    finished = [run for run in runs if run.finished]
    names = list(dict.fromkeys(name for run in finished for name in run.options))
    differing = [
        name for name in names if is_setting(name) and len({_key(run.options.get(name)) for run in finished}) > 1
    ]
    groups: dict[tuple[str, ...], list[Run]] = {}
    for run in finished:
        groups.setdefault(tuple(_key(run.options.get(name)) for name in differing), []).append(run)
    settings, notes = [], []
    for group in groups.values():
        by_seed: dict[int, Run] = {}
        for run in group:
            by_seed.setdefault(run.options.get("seed", 0), run)
        setting = Setting(
            options=_shown({name: group[0].options.get(name) for name in differing}),
            seeds=tuple(by_seed),
            measures=_intervals(list(by_seed.values())),
            runs=tuple(by_seed.values()),
        )
        settings.append(setting)
        if len(by_seed) < len(group):
            notes.append(
                f"{setting.label}: {len(group) - len(by_seed)} of {len(group)} runs repeat a seed: counted once"
            )
    return Comparison(settings, [run for run in runs if not run.finished], notes)


def is_setting(option: str) -> bool:
    """Whether runs that differ in it are of two settings."""
    return not any(option == fixed or option.startswith(f"{fixed}.") for fixed in _NOT_A_SETTING)


def _shown(options: dict[str, Any]) -> dict[str, Any]:
    """A grammar's text is long: a short hash tells two apart."""
    if "language.grammar" in options:
        digest = hashlib.blake2b(str(options["language.grammar"]).encode(), digest_size=3).hexdigest()
        options["language.grammar"] = f"#{digest}"
    return options


def _intervals(runs: Sequence[Run]) -> dict[str, Interval]:
    # The ends of a run's own interval are no measures: their mean over seeds says nothing.
    names = dict.fromkeys(
        name for run in runs for name in run.metrics if not name.endswith(("_low", "_high", "_stderr"))
    )
    return {name: mean_interval([run.metrics[name] for run in runs if name in run.metrics]) for name in names}


def mean_interval(values: Sequence[float]) -> Interval:
    return Interval(*mean_and_half(values), tuple(values))


def table(comparison: Comparison, measures: Sequence[str] = MEASURES) -> Table:
    """For a terminal: a row per setting, mean ± half the 95 % interval."""
    shown = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        caption="mean ± half of the 95 % interval over seeds",
        caption_justify="left",
    )
    shown.add_column("setting", no_wrap=True)
    shown.add_column("seeds", justify="right", no_wrap=True)
    for measure in measures:
        shown.add_column(measure.replace("/", "/\n"), justify="right", no_wrap=True)
    for setting in comparison.settings:
        shown.add_row(
            "\n".join(setting.lines),
            str(len(setting.seeds)),
            *(str(setting.measures.get(measure, "–")) for measure in measures),
        )
    return shown


def write_csv(comparison: Comparison, path: Path) -> None:
    """A row per setting with all its measures: mean, and the ends of the interval (empty for a single seed)."""
    names = list(dict.fromkeys(name for setting in comparison.settings for name in setting.measures))
    options = list(comparison.settings[0].options) if comparison.settings else []
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        columns = [f"{name}{suffix}" for name in names for suffix in ("", "_low", "_high")]
        writer.writerow([*options, "seeds", *columns])
        for setting in comparison.settings:
            cells: list[Any] = []
            for name in names:
                interval = setting.measures.get(name)
                if interval is None:
                    cells += ["", "", ""]
                elif interval.half is None:
                    cells += [interval.mean, "", ""]
                else:
                    cells += [interval.mean, interval.mean - interval.half, interval.mean + interval.half]
            writer.writerow([*map(written, setting.options.values()), len(setting.seeds), *cells])


@dataclass(frozen=True, slots=True)
class Difference:
    """A setting less the baseline in one measure, paired over the seeds that both have."""

    setting: str
    measure: str
    seeds: int
    mean: float
    low: float | None  # of the 95 % bootstrap interval over seeds; None for a single seed
    high: float | None


def differences(comparison: Comparison, baseline: str, measures: Sequence[str] = MEASURES) -> list[Difference]:
    """Every other setting against the one with that label. Seeds of both are compared pairwise: what a seed does to
    data and first weights falls out of the difference.

    Raises `ValueError` for a baseline that is none of the settings.
    """
    settings = {setting.label: setting for setting in comparison.settings}
    if baseline not in settings:
        raise ValueError(f"baseline={baseline}: no such setting; there are {'; '.join(settings)}")
    base = dict(zip(settings[baseline].seeds, settings[baseline].runs, strict=True))
    found = []
    for label, setting in settings.items():
        if label == baseline:
            continue
        for measure in measures:
            pairs = [
                run.metrics[measure] - base[seed].metrics[measure]
                for seed, run in zip(setting.seeds, setting.runs, strict=True)
                if seed in base and measure in run.metrics and measure in base[seed].metrics
            ]
            if pairs:
                ends = bootstrap_interval(pairs) if len(pairs) > 1 else (None, None)
                found.append(Difference(label, measure, len(pairs), sum(pairs) / len(pairs), *ends))
    return found


def difference_table(found: Sequence[Difference], baseline: str) -> Table:
    shown = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        title=f"difference from {baseline}",
        title_justify="left",
        caption="paired over seeds; 95 % bootstrap interval",
        caption_justify="left",
    )
    for column in ("setting", "measure"):
        shown.add_column(column, no_wrap=True)
    for column in ("seeds", "difference", "95 %"):
        shown.add_column(column, justify="right", no_wrap=True)
    for each in found:
        ends = "–" if each.low is None else f"{each.low:+.4g} … {each.high:+.4g}"
        shown.add_row(each.setting, each.measure, str(each.seeds), f"{each.mean:+.4g}", ends)
    return shown


def write_differences(found: Sequence[Difference], path: Path) -> None:
    pl.DataFrame(found).write_csv(path)


def measured(comparison: Comparison, measures: Sequence[str] = MEASURES) -> pl.DataFrame:
    """A row for each setting, seed and measure: the rows of `figures.settings`."""
    rows = [
        (setting.label, seed, measure, run.metrics[measure])
        for setting in comparison.settings
        for seed, run in zip(setting.seeds, setting.runs, strict=True)
        for measure in measures
        if measure in run.metrics
    ]
    schema = {"setting": pl.String, "seed": pl.Int64, "measure": pl.String, "value": pl.Float64}
    return pl.DataFrame(rows, schema=schema, orient="row")


def written(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "null"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _key(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)
