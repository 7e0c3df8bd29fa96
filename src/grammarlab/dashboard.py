"""What Weights & Biases shows of the runs: a workspace of the project, a report of a sweep."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grammarlab.config import ConfigError, DashboardConfig
from grammarlab.measures import STEP, TRAIN, measure_names, split_measures

if TYPE_CHECKING:
    from wandb_workspaces.reports.v2.interface import Report
    from wandb_workspaces.workspaces import Workspace

# What `tracking.log_result` logs besides the measures, by section.
TABLES = ("samples", "sentences")
FIGURES = {
    "truth": ("positions", "temperatures"),
    "training": ("learning_curves",),
    "samples": ("sentences",),
    "attention": ("attention", "next_words"),
}

MOST_RUNS = 100  # in a plot; W&B's own limit is 10, and what is beyond it is left out in silence

# ---- what is shown -------------------------------------------------------------------------------------------------


def truth_plots(temperatures: Sequence[float], exact: bool) -> dict[str, list[str]]:
    """Each plot's title and lines: what is exact of a quantity beside its sampled estimate and the interval's ends."""
    plots: dict[str, list[str]] = {}
    for name in measure_names(temperatures, exact=exact, holdout=True):
        _, *temperature, quantity = name.split("/")
        for ending in ("_low", "_high", "_stderr", "_mass", "_share"):
            quantity = quantity if quantity == "legal_mass" else quantity.removesuffix(ending)
        plots.setdefault(" ".join([quantity, *temperature]), []).append(name)
    return plots


def training_plots() -> dict[str, list[str]]:
    train_loss, *others = TRAIN
    loss, floor, *rest = split_measures("val")
    return {"loss": [train_loss, loss, floor]} | {name: [name] for name in (*rest, *others)}


def workspace(options: DashboardConfig, entity: str = "") -> Workspace:
    """The page of a project."""
    _, ws, wr = _libraries()
    plots = {"truth": truth_plots(options.temperatures, options.exact), "training": training_plots()}
    tables = {"samples": [wr.WeavePanelSummaryTable(table_name=table) for table in TABLES]}
    sections = []
    for title, figures in FIGURES.items():
        panels = [
            *_line_plots(wr, plots.get(title, {})),
            *tables.get(title, []),
            *(wr.MediaBrowser(title=figure, media_keys=[f"figures/{figure}"]) for figure in figures),
        ]
        for number, panel in enumerate(panels):
            panel._id = f"{title}-{number}"  # else drawn at random
        settings = ws.SectionPanelSettings(x_axis=STEP)
        sections.append(ws.Section(name=title, panels=panels, is_open=True, panel_settings=settings))
    page = ws.Workspace(
        entity=entity,
        project=options.project,
        name=options.name or options.project,
        sections=sections,
        settings=ws.WorkspaceSettings(x_axis=STEP),
    )
    page._internal_runset_id = "runs"
    return page


@dataclass(frozen=True, slots=True)
class Sweep:
    """What is known of a sweep: the group of its runs at W&B and, from its folder, what it sweeps."""

    group: str
    options: Sequence[str] = ()
    settings: Sequence[str] = ()


def report(options: DashboardConfig, entity: str, sweep: Sweep) -> Report:
    """What was swept, the curves with the seeds of a setting as one line, and the runs side by side."""
    _, _, wr = _libraries()
    runs = wr.Runset(
        entity=entity,
        project=options.project,
        name=sweep.group,
        filters=f"Group = {json.dumps(sweep.group)}",
        groupby=[f"config.{option}" for option in sweep.options] or ["group"],
    )
    swept = f"Swept: {', '.join(sweep.options)}. " if sweep.options else ""
    truth = truth_plots(options.temperatures, options.exact)
    blocks = [
        wr.P(f"{swept}A line is the mean over seeds, its band from the least to the greatest."),
        *([wr.UnorderedList(list(sweep.settings))] if sweep.settings else []),
    ]
    for title, panels in (
        ("Against the truth", _line_plots(wr, truth, seeds_as_one=True)),
        ("Training", _line_plots(wr, training_plots(), seeds_as_one=True)),
        ("Runs", [wr.RunComparer(diff_only="split")]),
    ):
        blocks += [wr.H2(title), wr.PanelGrid(runsets=[runs], panels=panels)]
    title = options.name or f"Sweep {sweep.group}"
    return wr.Report(project=options.project, entity=entity, title=title[:128], blocks=blocks)


def _line_plots(wr: Any, plots: dict[str, list[str]], *, seeds_as_one: bool = False) -> list[Any]:
    grouped = {"groupby_aggfunc": "mean", "groupby_rangefunc": "minmax"} if seeds_as_one else {}
    return [
        wr.LinePlot(title=title, x=STEP, y=lines, max_runs_to_show=MOST_RUNS, **grouped)
        for title, lines in plots.items()
    ]


# ---- to a file, and to W&B -----------------------------------------------------------------------------------------


def write(options: DashboardConfig) -> Path:
    """The workspace as it would be sent, as JSON."""
    view = workspace(options, options.entity or "")._to_model()
    content = {
        "entity": view.entity,
        "project": view.project,
        "name": view.display_name,
        "spec": json.loads(view.spec.model_dump_json(by_alias=True, exclude_none=True)),
    }
    path = Path(options.into or "outputs/dashboard.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def save(options: DashboardConfig) -> str:
    """The URL of the workspace, or of a sweep's report, saved at W&B."""
    sweep = None if options.sweep is None else _sweep(options.sweep)
    with _account() as api:
        entity = options.entity or api.default_entity
        if not entity:
            raise ConfigError("entity: must be given, as entity=NAME: the account has no default one")
        page: Any = workspace(options, entity) if sweep is None else report(options, entity, sweep)
        return str(page.save().url)


def _sweep(named: str) -> Sweep:
    folder = next((path for path in (Path(named), Path("outputs/sweeps") / named) if path.is_dir()), None)
    if folder is None and "/" in named:
        raise ConfigError(f"sweep={named}: no such folder")
    if folder is None:
        return Sweep(named)
    from grammarlab.sweep import compare, read_runs
    from grammarlab.tracking import NAME_LIMIT, shortened

    try:
        runs = read_runs([folder])
    except ValueError as error:
        raise ConfigError(f"sweep={named}: {error}") from None
    settings = compare(runs).settings
    group = next((str(run.options["group"]) for run in runs if run.options.get("group")), folder.resolve().name)
    return Sweep(
        shortened(group, NAME_LIMIT), list(settings[0].options) if settings else [], [each.label for each in settings]
    )


def _libraries() -> tuple[Any, Any, Any]:
    """wandb, and what describes workspaces and reports."""
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # read when it is imported
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Pydantic V1 style")  # said of wandb_workspaces' own classes
        try:
            import wandb
            import wandb_workspaces.reports.v2 as reports
            import wandb_workspaces.workspaces as workspaces
        except ModuleNotFoundError as error:
            raise ConfigError(f"{error.name} is missing: pip install -c constraints.txt -e '.[dashboard]'") from None
    return wandb, workspaces, reports


@contextmanager
def _account() -> Iterator[Any]:
    """W&B's interface for who is logged in; what it refuses is said in one line."""
    wandb, _, _ = _libraries()
    wandb.setup(settings=wandb.Settings(silent=True))  # so that it never asks for a key
    try:
        yield wandb.Api()
    except ConfigError:
        raise
    except wandb.errors.UsageError:
        raise ConfigError("not logged in to Weights & Biases: `wandb login`, or dry_run=true for a file") from None
    except Exception as error:
        said = " ".join(str(error).split())[:300]
        raise ConfigError(f"Weights & Biases refused ({type(error).__name__}: {said})") from error
