"""The workspace and the report for Weights & Biases: what they show is what runs log, and nothing is missing."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import wandb_file
from conftest import ROOT, SMALL, Ended

from grammarlab import dashboard
from grammarlab.config import ConfigError, DashboardConfig
from grammarlab.measures import STEP, TRAIN, measure_names, split_measures

Command = Callable[..., Ended]
TEMPERATURES = [0.0, 0.5, 1.0]


@pytest.fixture(autouse=True)
def no_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("WANDB")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))


def sections(path: Path) -> dict[str, list[dict[str, Any]]]:
    """The panels of a written workspace by section."""
    spec = json.loads(path.read_text(encoding="utf-8"))["spec"]
    return {each["name"]: each["panels"] for each in spec["section"]["panelBankConfig"]["sections"]}


def configs(path: Path, kind: str) -> list[dict[str, Any]]:
    return [p["config"] for panels in sections(path).values() for p in panels if p["viewType"] == kind]


def written(tmp_path: Path, **options: Any) -> Path:
    return dashboard.write(DashboardConfig(dry_run=True, into=str(tmp_path / "page.json"), **options))


def test_the_sections_are_in_order(tmp_path: Path) -> None:
    assert list(sections(written(tmp_path))) == ["truth", "training", "samples", "attention"]
    assert all(sections(written(tmp_path)).values())


@pytest.mark.parametrize("exact", [True, False])
def test_every_measure_is_drawn_once_and_nothing_else(tmp_path: Path, exact: bool) -> None:
    plots = configs(written(tmp_path, temperatures=TEMPERATURES, exact=exact), "Run History Line Plot")
    drawn = [name for plot in plots for name in plot["metrics"]]
    measures = [*measure_names(TEMPERATURES, exact=exact, holdout=True), *split_measures("val"), *TRAIN]
    assert sorted(drawn) == sorted(measures)
    assert {plot["xAxis"] for plot in plots} == {STEP}
    assert len({plot["chartTitle"] for plot in plots}) == len(plots)


@pytest.mark.parametrize("exact", [True, False])
def test_what_is_sampled_stands_beside_the_truth(exact: bool) -> None:
    plots = dashboard.truth_plots([0.5, 1.0], exact).values()
    for temperature in ("", "T0_5/"):
        (lines,) = [lines for lines in plots if f"truth/{temperature}validity" in lines]
        assert {f"sampled/{temperature}validity{bound}" for bound in ("", "_low", "_high")} <= set(lines)
        assert (f"truth/{temperature}validity_stderr" in lines) == (not exact)


def test_tables_and_pictures_are_those_of_a_run(command: Command, tmp_path: Path) -> None:
    ended = command("train", *[option for option in SMALL if option != "logger=csv"], "trainer.max_steps=1")
    folder = json.loads((Path(ended.last_line) / "results.json").read_text())["wandb_run"]
    page = written(tmp_path)
    tables = {
        panel["panel2Config"]["exp"]["fromOp"]["inputs"]["key"]["val"]  # the entry of a run's summary
        for panel in configs(page, "Weave")
    }
    pictures = {key for panel in configs(page, "Media Browser") for key in panel["mediaKeys"]}
    assert tables | pictures == set(wandb_file.read(Path(folder)).media)


def test_the_file_is_the_same_byte_for_byte(command: Command) -> None:
    first = command("dashboard", "dry_run=true")
    assert (first.status, first.out, first.err) == (0, "outputs/dashboard.json\n", "")
    assert command("dashboard", "dry_run=true", "into=a/b.json").last_line == "a/b.json"
    assert Path("a/b.json").read_bytes() == Path("outputs/dashboard.json").read_bytes()
    command("dashboard", "dry_run=true", "into=a/b.json", "project=other", "entity=me", "name=first")
    content = json.loads(Path("a/b.json").read_text())
    assert [content[key] for key in ("project", "entity", "name")] == ["other", "me", "first"]


def test_without_a_login_it_says_what_to_do(tmp_path: Path) -> None:
    """In a process and a home of its own; nothing listens where the server would be, and nothing is asked there."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "src/dashboard.py"), "sweep=some"],
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path), "WANDB_API_KEY": "", "WANDB_BASE_URL": "http://127.0.0.1:9"},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: not logged in to Weights & Biases: `wandb login`, or dry_run=true for a file\n"


@pytest.mark.parametrize(
    "options, message",
    [
        (["temperatures=[]"], "temperatures=[]: must name at least one"),
        (["temperatures=[1,1]"], "temperatures=[1.0, 1.0]: must all differ"),
        (["temperatures=[-1]"], "temperatures=-1.0: must be 0 (greedy) or positive and finite"),
        (["exact=perhaps"], "exact=perhaps: must be true or false"),
        (["into=a.json"], "into=a.json: needs dry_run=true"),
        (["sweep=a", "dry_run=true"], "sweep=a: and dry_run=true exclude each other"),
        (["sweep="], "sweep=: must not be empty"),
        (["sweep=a/b"], "sweep=a/b: no such folder"),
        (["sweep=."], "sweep=.: "),
        (["project="], "project=: must have 1 to 128 characters"),
        (["entity="], "entity=: must have 1 to 128 characters"),
        ([f"name={'n' * 129}"], "must have 1 to 128 characters"),
        (["nme=a"], "nme: no such option; did you mean name?"),
    ],
)
def test_a_wrong_option_is_one_line(command: Command, options: list[str], message: str) -> None:
    ended = command("dashboard", *options)
    assert ended.status == 1
    assert message in ended.err
    assert ended.err.startswith("error: ") and ended.err.count("\n") == 1
    assert list(Path.cwd().iterdir()) == []


def test_a_missing_package_is_named(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb_workspaces.workspaces", None)
    ended = command("dashboard", "dry_run=true")
    assert ended.status == 1
    assert ended.err.startswith("error: wandb_workspaces") and "pip install" in ended.err


# ---- saved at W&B, with a stand-in for the account ------------------------------------------------------------------


@pytest.fixture
def saved(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What would have been sent, with the account of `me`."""
    sent: list[Any] = []
    _, workspaces, reports = dashboard._libraries()

    @contextmanager
    def account() -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(default_entity="me")

    def save(page: Any) -> SimpleNamespace:
        sent.append(page)
        return SimpleNamespace(url="https://there")

    monkeypatch.setattr(dashboard, "_account", account)
    for kind in (workspaces.Workspace, reports.Report):
        monkeypatch.setattr(kind, "save", save)
    return sent


def test_the_workspace_is_saved_for_the_account_or_who_is_named(saved: list[Any]) -> None:
    assert dashboard.save(DashboardConfig()) == "https://there"
    dashboard.save(DashboardConfig(entity="team", project="other"))
    assert [(page.entity, page.project, page.name) for page in saved] == [
        ("me", "grammarlab", "grammarlab"),
        ("team", "other", "other"),
    ]


def test_a_report_is_of_the_sweeps_runs_and_options(command: Command, saved: list[Any]) -> None:
    ended = command("train", "-m", *SMALL, "trainer.max_steps=1", "model.causal=true,false", "seed=1,2")
    folder = Path(ended.last_line)
    for sweep in (str(folder), folder.name):
        dashboard.save(DashboardConfig(sweep=sweep, temperatures=[0.5, 1.0]))
    dashboard.save(DashboardConfig(sweep="elsewhere", name="mine"))
    assert [about.title for about in saved] == [f"Sweep {folder.name}"] * 2 + ["mine"]
    for about in saved[:2]:
        grids = [block for block in about.blocks if hasattr(block, "runsets")]
        for grid in grids:
            (runs,) = grid.runsets
            assert (runs.entity, runs.project) == ("me", "grammarlab")
            assert runs.groupby == ["config.model.causal"]
            assert folder.name in str(runs.filters) and "Group" in str(runs.filters)
        lines = [line for grid in grids for panel in grid.panels for line in getattr(panel, "y", None) or []]
        assert {"truth/kl", "val/loss", "train/loss", "sampled/T0_5/validity"} <= set(map(str, lines))
        assert "model.causal" in str(about.blocks[0].text)
        assert about.blocks[1].items == ["model.causal=true", "model.causal=false"]
    assert saved[2].blocks[2].runsets[0].groupby == ["group"]


def test_a_group_given_to_the_sweep_is_the_one_that_is_shown(command: Command, saved: list[Any]) -> None:
    group = "g" * 200  # shortened as it was when the runs were logged
    ended = command("train", "-m", *SMALL, "trainer.max_steps=1", "seed=1", f"group={group}")
    assert len(dashboard._sweep(ended.last_line).group) == 128


def test_what_the_server_refuses_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    wandb, _, _ = dashboard._libraries()
    monkeypatch.setattr(wandb, "setup", lambda settings: None)
    monkeypatch.setattr(wandb, "Api", lambda: SimpleNamespace(default_entity=None))
    with pytest.raises(ConfigError, match="entity: must be given"):
        dashboard.save(DashboardConfig())

    def refuse() -> None:
        raise RuntimeError("no\nsuch entity")

    monkeypatch.setattr(wandb, "Api", refuse)
    with pytest.raises(ConfigError, match=r"Weights & Biases refused \(RuntimeError: no such entity\)"):
        dashboard.save(DashboardConfig())
