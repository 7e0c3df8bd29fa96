"""What is written: the metrics file; Weights & Biases and TensorBoard read back from the files of a run."""

import csv
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
import wandb_file
from conftest import ROOT, SMALL, Ended
from lightning.pytorch.loggers.logger import Logger

from grammarlab import tables
from grammarlab.tracking import MetricsFile, shortened, summary_of

Command = Callable[..., Ended]
WITH_WANDB = [option for option in SMALL if option != "logger=csv"]
FIGURES = ("attention", "learning_curves", "next_words", "positions", "sentences", "temperatures")


@pytest.fixture(autouse=True)
def no_account(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_DIR", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)


def runs_in(store: Path) -> list[Path]:
    return sorted((store / "wandb").glob("offline-run-*"))


def results(folder: str | Path) -> dict[str, object]:
    content: dict[str, object] = json.loads((Path(folder) / "results.json").read_text())
    return content


def test_metrics_file_is_whole_after_every_call(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path / "metrics.csv", ["a", "b"])
    assert isinstance(file, Logger)
    for step in range(3):
        file.log_metrics({"a": step / 3, "epoch": 0}, step=step)
        with (tmp_path / "metrics.csv").open() as read:  # as another process would, or this one after a kill
            rows = list(csv.DictReader(read))
        assert [float(row["a"]) for row in rows] == [s / 3 for s in range(step + 1)]
    file.log_metrics({"b": 1.0}, step=3)
    assert file.last == {"a": 2 / 3, "b": 1.0}
    with pytest.raises(ValueError, match="unknown"):
        file.log_metrics({"unknown": 1.0}, step=4)
    file.close()


def test_names_stay_different_when_they_are_shortened() -> None:
    long = "x" * 300
    assert shortened("short", 128) == "short"
    assert len(shortened(long + "1", 128)) == 128
    assert shortened(long + "1", 128) != shortened(long + "2", 128)


def test_best_values_stand_for_a_run_where_there_is_a_best() -> None:
    assert summary_of("val/loss") == "min,last"
    assert summary_of("truth/kl") == "min,last"
    assert summary_of("truth/T0_8/validity") == "max,last"
    assert summary_of("val/excess_loss") == "last"  # below 0 it is worse, not better
    assert summary_of("train/learning_rate") == "last"


def test_a_sweep_is_one_store_with_a_run_for_each_job(command: Command) -> None:
    ended = command("train", "-m", *WITH_WANDB, "model.heads=4,5", "seed=1,2", "name=null", "tags=[one,'2']")
    assert ended.status == 1  # heads=5 fails before it has a run
    sweep = Path(ended.last_line)
    folders = runs_in(Path("outputs/wandb"))
    assert len(folders) == 2
    assert len({wandb_file.read(folder).run.run_id for folder in folders}) == 2
    for job in "01":
        content = results(sweep / job)
        run = wandb_file.read(Path(str(content["wandb_run"])))
        assert run.exit_code == 0
        assert run.run.run_group == sweep.name
        assert run.run.display_name == f"model.heads=4 seed={int(job) + 1}"
        assert run.run.project == "grammarlab"
        assert list(run.run.tags) == ["one", "2", "captions"]
        assert run.config["commit"] == content["commit"]
        assert run.config["model"]["causal"] is True
        assert run.config["model"]["width"] == 32
        assert run.config["seed"] == int(job) + 1
        assert run.config["optimizer"]["learning_rate"] == 0.003
        assert "${" not in json.dumps(run.config)


def test_the_run_file_holds_every_value_of_metrics_csv(command: Command) -> None:
    ended = command("train", *WITH_WANDB)
    assert (ended.status, ended.err) == (0, "")
    folder = Path(ended.last_line)
    run = wandb_file.read(Path(str(results(folder)["wandb_run"])))
    logged: dict[int, dict[str, float]] = {}
    for row in run.history:
        if "trainer/global_step" in row:
            logged.setdefault(row["trainer/global_step"], {}).update(row)
    with (folder / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) > 5
    for row in rows:
        for name, value in row.items():
            if value and name != "step":
                assert logged[int(row["step"])][name] == float(value), name

    measures = set(rows[0]) - {"step"}
    assert measures <= run.metrics.keys()
    assert {run.metrics[name].step_metric for name in measures} == {"trainer/global_step"}
    assert run.metrics["val/loss"].summary.min and run.metrics["truth/validity"].summary.max
    for name in ("train/gradient_norm", "train/learning_rate", "train/tokens_per_second"):
        assert any(name in row for row in run.history)


def test_samples_and_pictures_are_in_the_store(command: Command) -> None:
    ended = command("train", *WITH_WANDB)
    folder = Path(str(results(ended.last_line)["wandb_run"]))
    media = wandb_file.read(folder).media
    assert set(media) == {"samples", "sentences", *(f"figures/{name}" for name in FIGURES)}
    for name in ("samples", "sentences"):
        content = json.loads((folder / "files" / media[name]).read_text())
        written = tables.read(Path(ended.last_line), name)
        assert written is not None
        assert content["columns"] == written.columns
        assert [tuple(row) for row in content["data"]] == written.rows()
    assert "wrong_at" in tables.SCHEMAS["samples"]
    for name in FIGURES:
        assert (folder / "files" / media[f"figures/{name}"]).read_bytes().startswith(b"\x89PNG")
    for kind in ("data", "cache", "config"):  # nothing is staged in a home folder
        assert f"WANDB_{kind.upper()}_DIR" not in os.environ


@pytest.mark.parametrize("changed", [True, False])
def test_what_the_code_differed_in_is_kept_beside_the_run(
    command: Command, monkeypatch: pytest.MonkeyPatch, changed: bool
) -> None:
    difference = "diff --git a/src/é.py b/src/é.py\n".encode()
    monkeypatch.setattr("grammarlab.record.commit", lambda: "a" * 40 + ("+changes" if changed else ""))
    monkeypatch.setattr("grammarlab.record.changes", lambda: difference)
    ended = command("train", *WITH_WANDB, "trainer.max_steps=1", "tags=[captions]")
    assert ended.status == 0, ended.err
    folder = Path(str(results(ended.last_line)["wandb_run"]))
    run = wandb_file.read(folder)
    assert run.config["commit"] == results(ended.last_line)["commit"]
    assert list(run.run.tags) == ["captions"]  # once, and not refused for being there twice
    assert ("changes.diff" in run.files) == changed
    kept = folder / "files/changes.diff"
    assert kept.exists() == changed
    if changed:
        (Path(ended.last_line) / "changes.diff").unlink()  # an upload needs nothing of the run's own folder
        assert kept.read_bytes() == difference


def test_tensorboard_has_what_the_runs_folder_has(command: Command) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="pkg_resources is deprecated")
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    ended = command("train", *SMALL, "logger=tensorboard")
    assert (ended.status, ended.err) == (0, "")
    folder = Path(ended.last_line)
    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0, "images": 0, "tensors": 0})
    events.Reload()
    written = tables.read(folder, "metrics")
    assert written is not None
    assert set(events.Tags()["scalars"]) - {"epoch"} == set(written.columns) - {"step"}
    for name in written.columns[1:]:
        expected = written.select("step", name).drop_nulls().cast({name: pl.Float32}).rows()
        assert [(event.step, event.value) for event in events.Scalars(name)] == expected, name

    assert set(events.Tags()["images"]) == {f"figures/{name}" for name in FIGURES}
    assert all(event.width > 100 for name in FIGURES for event in events.Images(f"figures/{name}"))
    texts = {
        name: events.Tensors(f"{name}/text_summary")[0].tensor_proto.string_val[0].decode()
        for name in ("config", "samples", "sentences")
    }
    assert "name: captions" in texts["config"] and "commit:" in texts["config"]
    for name in ("samples", "sentences"):
        content = tables.read(folder, name)
        assert content is not None
        heading, _, *rows = texts[name].splitlines()
        assert heading == f"| {' | '.join(content.columns)} |"
        assert [f"`{text}`" in row for text, row in zip(content["text"], rows, strict=True)] == [True] * len(rows)
    assert not Path("outputs/wandb").exists()


def test_words_that_are_not_ascii_come_through(command: Command) -> None:
    Path("odd.grammar").write_text("S -> 'é' '<b>' [1/2] | '李' [1/2]  # words of other alphabets\n", encoding="utf-8")
    ended = command("train", *WITH_WANDB, "language=file", "language.file=odd.grammar", "language.start=S")
    assert ended.status == 0, ended.err
    text = (Path(ended.last_line) / "samples.csv").read_text(encoding="utf-8")
    assert "é" in text or "李" in text
    lines = command("generate", f"checkpoint={ended.last_line}/checkpoints/last.ckpt", "samples=30", "json=true").out
    assert any(json.loads(line)["text"] in ("é <b>", "李") for line in lines.splitlines())


def test_a_failed_run_is_not_shown_as_finished(command: Command) -> None:
    ended = command("train", "-m", *WITH_WANDB, "optimizer.learning_rate=1e30,0.01", "seed=1")
    assert ended.status == 1
    codes = [wandb_file.read(Path(str(results(Path(ended.last_line) / job)["wandb_run"]))).exit_code for job in "01"]
    assert codes == [1, 0]


def test_long_names_are_kept_within_the_servers_limits(command: Command) -> None:
    name = "n" * 300
    ended = command("train", *WITH_WANDB, f"name={name}", f"group={name}", f"tags=[{name}]", "trainer.max_steps=1")
    assert ended.status == 0, ended.err
    run = wandb_file.read(Path(str(results(ended.last_line)["wandb_run"]))).run
    assert (len(run.display_name), len(run.run_group), len(run.tags[0])) == (128, 128, 64)


def test_disabled_in_the_environment_writes_nothing(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    ended = command("train", *WITH_WANDB, "trainer.max_steps=1")
    assert ended.status == 0
    assert results(ended.last_line)["wandb_run"] is None
    assert not Path("outputs/wandb").exists()


def test_a_resumed_run_is_a_new_one_that_names_its_source(command: Command) -> None:
    first = command("train", *WITH_WANDB, "trainer.max_steps=4")
    checkpoint = f"{first.last_line}/checkpoints/last.ckpt"
    second = command("train", f"checkpoint={checkpoint}", "trainer.max_steps=6")
    assert second.status == 0, second.err
    one, two = (wandb_file.read(Path(str(results(e.last_line)["wandb_run"]))) for e in (first, second))
    assert one.run.run_id != two.run.run_id
    assert two.config["checkpoint"] == checkpoint
    assert min(row["trainer/global_step"] for row in two.history if "train/loss" in row) == 6


def test_logging_never_changes_the_numbers(command: Command) -> None:
    with_wandb = results(command("train", *WITH_WANDB, "model.dropout=0.1").last_line)["metrics"]
    without = results(command("train", *SMALL, "model.dropout=0.1").last_line)["metrics"]
    for metrics in (with_wandb, without):
        assert isinstance(metrics, dict)
        del metrics["train/tokens_per_second"]
    assert with_wandb == without


def test_online_without_an_account_says_what_to_do(tmp_path: Path) -> None:
    """In a process and a home of its own, without a terminal to ask a question on."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("WANDB")}
    done = subprocess.run(
        [sys.executable, str(ROOT / "src/train.py"), *WITH_WANDB, "logger.mode=online"],
        cwd=tmp_path,
        env={**environment, "HOME": str(tmp_path), "NETRC": str(tmp_path / "none")},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=120,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: logger.mode=online: ")
    assert "wandb login" in done.stderr
    assert done.stderr.count("\n") == 1


def test_make_sync_uploads_from_the_store_and_says_when_there_is_nothing(tmp_path: Path) -> None:
    """With a stand-in for `wandb` that says how it is called."""
    stand_in = tmp_path / "bin" / "wandb"
    stand_in.parent.mkdir()
    stand_in.write_text('#!/bin/sh\necho "$WANDB_DIR $WANDB_ERROR_REPORTING $@"\n')
    stand_in.chmod(0o755)
    store = tmp_path / "store"

    def sync() -> str:
        options = ["-s", "-o", ".venv/.installed", f"BIN={stand_in.parent}", f"STORE={store}"]
        done = subprocess.run(["make", *options, "sync"], cwd=ROOT, capture_output=True, text=True, check=True)
        assert done.stderr == ""
        return done.stdout

    assert sync() == f"no offline run in {store}/wandb: python src/train.py makes one\n"
    (store / "wandb/offline-run-1").mkdir(parents=True)
    assert sync() == f"{store} false sync --yes\n"
