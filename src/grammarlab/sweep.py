"""Many runs as one result: a row for each setting, means and intervals over its seeds."""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from rich import box
from rich.table import Table

from grammarlab import figures
from grammarlab.intervals import mean_and_half

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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

    @property
    def finished(self) -> bool:
        return self.status == "finished"


def load(paths: Sequence[Path]) -> list[Run]:
    """The runs in the given folders, each a run or a folder of runs. Raises `ValueError` where there is none."""
    runs: list[Run] = []
    for path in paths:
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
        return Run(
            folder,
            results.get("name") or folder.name,
            results["status"],
            results.get("error"),
            _flat(config),
            results["metrics"],
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

    @property
    def label(self) -> str:
        return ", ".join(self.lines)

    @property
    def lines(self) -> list[str]:
        return [f"{name}={_written(value)}" for name, value in self.options.items()] or ["all runs"]


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
        name
        for name in names
        if not any(name == fixed or name.startswith(f"{fixed}.") for fixed in _NOT_A_SETTING)
        and len({_key(run.options.get(name)) for run in finished}) > 1
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
        )
        settings.append(setting)
        if len(by_seed) < len(group):
            notes.append(
                f"{setting.label}: {len(group) - len(by_seed)} of {len(group)} runs repeat a seed: counted once"
            )
    return Comparison(settings, [run for run in runs if not run.finished], notes)


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
            writer.writerow([*map(_written, setting.options.values()), len(setting.seeds), *cells])


def figure(comparison: Comparison, measures: Sequence[str] = MEASURES) -> Figure:
    """Each measure against the settings: a point for each seed, the mean and its interval."""
    shown = [m for m in measures if any(m in setting.measures for setting in comparison.settings)]
    return figures.settings(
        [setting.label for setting in comparison.settings],
        {
            name: [
                (setting.measures[name].mean, setting.measures[name].half, setting.measures[name].values)
                if name in setting.measures
                else None
                for setting in comparison.settings
            ]
            for name in shown
        },
    )


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "null"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _key(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)
