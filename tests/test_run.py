"""Runs: what they leave, that they can be repeated, interrupted and resumed to the last bit."""

import csv
import dataclasses
import json
import math
import signal
import subprocess
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
import yaml
from conftest import captions, small_config

from grammarlab import record, run
from grammarlab.callbacks import Interrupted, Measure, StopOnSignal
from grammarlab.config import (
    ConfigError,
    DataConfig,
    EvaluateConfig,
    LanguageConfig,
    ModelConfig,
    OptimizerConfig,
    TrainConfig,
    TrainerConfig,
)
from grammarlab.data import ShuffledBatches
from grammarlab.parts import config_from_dict, config_to_dict, load_checkpoint
from grammarlab.task import DivergedError

NOT_REPEATED = "train/tokens_per_second"  # a time


def results(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "results.json").read_text())
    return content


def repeated(metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if name != NOT_REPEATED}


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open() as file:
        return [{k: v for k, v in row.items() if v and k != NOT_REPEATED} for row in csv.DictReader(file)]


def weights(path: Path) -> dict[str, torch.Tensor]:
    return load_checkpoint(str(path))[1]


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def with_dropout(**changes: Any) -> TrainConfig:
    """Dropout draws from torch's random state at every step, so a state that is lost shows."""
    return small_config(model=ModelConfig(width=12, heads=3, dropout=0.2), **changes)


# ---- what a run leaves ---------------------------------------------------------------------------------------------


def test_a_run_leaves_what_the_design_names(tmp_path: Path) -> None:
    metrics = run.train(small_config(), tmp_path / "run", progress_bar=False)
    folder = tmp_path / "run"
    content = results(folder)
    assert content["status"] == "finished"
    assert content["metrics"] == metrics
    assert content["wandb_run"] is None
    assert content["seconds"] > 0
    assert {"python", "torch", "lightning", "grammarlab"} <= content["versions"].keys()
    assert sorted({path.name for path in folder.iterdir()} - {"changes.diff"}) == [
        "attention.csv",
        "checkpoints",
        "config.yaml",
        "metrics.csv",
        "next_words.csv",
        "positions.csv",
        "results.json",
        "samples.csv",
        "sentences.csv",
        "temperatures.csv",
    ]
    assert (folder / "changes.diff").exists() == str(content["commit"]).endswith("+changes")
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["best.ckpt", "last.ckpt"]


def test_changes_rebuild_the_code_from_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout = tmp_path / "checkout"
    code, conf = checkout / "src/grammarlab", checkout / "conf"

    def git(*arguments: str, cwd: Path = checkout) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b")
        done = subprocess.run(["git", *identity, *arguments], cwd=cwd, capture_output=True, text=True, check=True)
        return done.stdout

    def content(root: Path) -> dict[str, bytes]:
        files = (path for name in ("src", "conf") for path in (root / name).rglob("*") if path.is_file())
        return {str(path.relative_to(root)): path.read_bytes() for path in files}

    code.mkdir(parents=True)
    conf.mkdir()
    git("init", "-q")
    for path in (code / "record.py", code / "gone.py", conf / "train.yaml"):
        path.write_text("one\ntwo\n")
    git("add", ".")
    git("commit", "-qm", "first")
    head = git("rev-parse", "HEAD").strip()
    monkeypatch.setattr(record, "__file__", str(code / "record.py"))
    assert record.commit() == head
    assert record.changes() == b""

    (checkout / "README.md").write_text("no code\n")
    assert record.commit() == head
    (code / "record.py").write_text("one\nzwei\n")
    (code / "gone.py").unlink()
    (conf / "train.yaml").write_text("staged\n")
    git("add", "conf")
    (conf / "new é.yaml").write_bytes("neu: é".encode())
    (code / "picture.png").write_bytes(bytes(range(256)))
    before = git("status", "--porcelain")
    assert record.commit() == f"{head}+changes"
    record.Record(tmp_path, {}, "run").write("finished")
    assert git("status", "--porcelain") == before  # nobody's index is touched
    assert results(tmp_path)["commit"] == f"{head}+changes"

    git("clone", "-q", str(checkout), str(tmp_path / "clone"))
    git("apply", str(tmp_path / "changes.diff"), cwd=tmp_path / "clone")
    assert content(tmp_path / "clone") == content(checkout)

    monkeypatch.setattr(record, "__file__", str(tmp_path / "elsewhere/src/grammarlab/record.py"))
    assert (record.commit(), record.changes()) == (None, b"")


def test_metrics_file_holds_every_measure_at_start_intervals_and_end(tmp_path: Path) -> None:
    metrics = run.train(small_config(), tmp_path / "run", progress_bar=False)
    evaluated = [int(row["step"]) for row in rows(tmp_path / "run") if "truth/kl" in row]
    assert evaluated == [0, 3, 6, 7]
    trained = [int(row["step"]) for row in rows(tmp_path / "run") if "train/loss" in row]
    assert trained == [2, 4, 6, 7]
    last: dict[str, float] = {}
    for row in rows(tmp_path / "run"):
        last |= {name: float(value) for name, value in row.items() if name != "step"}
    assert last == repeated(metrics)
    assert all(math.isfinite(value) for value in metrics.values())


def test_samples_file_agrees_with_the_language(tmp_path: Path) -> None:
    metrics = run.train(small_config(), tmp_path / "run", progress_bar=False)
    with (tmp_path / "run" / "positions.csv").open() as file:
        positions = list(csv.DictReader(file))
    assert [row["position"] for row in positions] == list("1234567")
    assert math.fsum(float(row["kl"]) * float(row["reached"]) for row in positions) == pytest.approx(
        metrics["truth/kl"]
    )
    with (tmp_path / "run" / "samples.csv").open() as file:
        samples = list(csv.DictReader(file))
    assert [row["temperature"] for row in samples] == ["0.5"] * 4 + ["1.0"] * 4
    for row in samples:
        assert (row["valid"] == "yes") == (float(row["log_prob_language"]) == pytest.approx(-3 * math.log(2)))
        assert float(row["log_prob_model"]) < 0


def test_config_file_rebuilds_the_run(tmp_path: Path) -> None:
    config = small_config(optimizer=OptimizerConfig(learning_rate=1e-5))
    run.train(config, tmp_path / "run", progress_bar=False)
    text = (tmp_path / "run" / "config.yaml").read_text()
    assert "${" not in text
    plain = yaml.safe_load(text)
    assert plain["optimizer"]["learning_rate"] == 1e-5  # YAML 1.1 reads 1e-05 as a string
    assert config_from_dict(plain) == config


def test_checkpoint_loads_with_torchs_default_and_holds_plain_containers(tmp_path: Path) -> None:
    run.train(small_config(), tmp_path / "run", progress_bar=False)
    checkpoint = torch.load(tmp_path / "run" / "checkpoints" / "last.ckpt", weights_only=True)
    assert checkpoint["global_step"] == 7
    assert checkpoint["hyper_parameters"]["config"] == config_to_dict(small_config())
    assert not any("_orig_mod" in name for name in checkpoint["state_dict"])


def test_best_checkpoint_is_that_of_the_lowest_validation_loss(tmp_path: Path) -> None:
    # A learning rate this high makes the loss rise again, so that best is not last.
    config = small_config(
        optimizer=OptimizerConfig(learning_rate=0.3),
        trainer=TrainerConfig(max_steps=12, val_check_interval=1, checkpoint_interval=5, log_every_n_steps=2),
    )
    run.train(config, tmp_path / "run", progress_bar=False)
    losses = {int(row["step"]): float(row["val/loss"]) for row in rows(tmp_path / "run") if "val/loss" in row}
    del losses[0]  # nothing is trained yet, and nothing kept
    best = torch.load(tmp_path / "run" / "checkpoints" / "best.ckpt", weights_only=True)["global_step"]
    assert losses[best] == min(losses.values())
    assert best != 12


def test_a_folder_is_never_shared_by_two_runs(tmp_path: Path) -> None:
    run.train(small_config(), tmp_path / "run", progress_bar=False)
    before = (tmp_path / "run" / "results.json").read_bytes()
    with pytest.raises(ConfigError, match="holds a run already"):
        run.train(small_config(seed=2), tmp_path / "run", progress_bar=False)
    assert (tmp_path / "run" / "results.json").read_bytes() == before


def test_a_dev_run_does_every_part_once_and_leaves_no_result(tmp_path: Path) -> None:
    config = small_config(trainer=TrainerConfig(fast_dev_run=True))
    run.train(config, tmp_path / "run", progress_bar=False)
    assert results(tmp_path / "run")["status"] == "dev"
    assert results(tmp_path / "run")["metrics"] == {}
    left = {path.name for path in (tmp_path / "run").iterdir()}
    assert left - {"changes.diff"} == {"config.yaml", "results.json"}


# ---- repeated, resumed ---------------------------------------------------------------------------------------------


def test_equal_config_and_seed_give_equal_numbers_whatever_ran_before(tmp_path: Path) -> None:
    first = run.train(with_dropout(), tmp_path / "a", progress_bar=False)
    torch.manual_seed(99)
    torch.rand(17)
    np.random.default_rng().random(5)
    run.train(with_dropout(seed=2), tmp_path / "other", progress_bar=False)
    second = run.train(with_dropout(), tmp_path / "b", progress_bar=False)
    assert repeated(first) == repeated(second)
    assert rows(tmp_path / "a") == rows(tmp_path / "b")
    assert same(weights(tmp_path / "a/checkpoints/last.ckpt"), weights(tmp_path / "b/checkpoints/last.ckpt"))


def test_seeds_differ(tmp_path: Path) -> None:
    first = run.train(small_config(seed=1), tmp_path / "a", progress_bar=False)
    second = run.train(small_config(seed=2), tmp_path / "b", progress_bar=False)
    assert first["truth/kl"] != second["truth/kl"]


def test_measuring_and_logging_never_change_what_is_trained(tmp_path: Path) -> None:
    often = TrainerConfig(max_steps=7, val_check_interval=1, checkpoint_interval=1, log_every_n_steps=1)
    never = TrainerConfig(max_steps=7, val_check_interval=50, checkpoint_interval=50, log_every_n_steps=50)
    run.train(with_dropout(trainer=often), tmp_path / "often", progress_bar=False)
    run.train(with_dropout(trainer=never), tmp_path / "never", progress_bar=False)
    assert same(weights(tmp_path / "often/checkpoints/last.ckpt"), weights(tmp_path / "never/checkpoints/last.ckpt"))


@pytest.mark.parametrize("train_size", [20, None], ids=["fixed", "fresh"])  # 20 / 8: the last batch is smaller
@pytest.mark.parametrize("stop_at", [1, 2, 3, 4, 5, 6])
def test_interrupted_and_resumed_equals_uninterrupted(tmp_path: Path, train_size: int | None, stop_at: int) -> None:
    data = DataConfig(train_size=train_size, batch_size=8, validation_size=10, test_size=10)
    schedule = OptimizerConfig(warmup_steps=2, schedule="cosine")  # type: ignore[arg-type]
    config = with_dropout(data=data, optimizer=schedule)
    whole = run.train(config, tmp_path / "whole", progress_bar=False)

    original = StopOnSignal.on_train_batch_start

    def interrupt(self: StopOnSignal, trainer: pl.Trainer, *arguments: Any) -> None:
        original(self, trainer, *arguments)
        if trainer.global_step == stop_at - 1:
            signal.raise_signal(signal.SIGTERM)  # in the middle of a step

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Interrupted) as stopped:
        patch.setattr(StopOnSignal, "on_train_batch_start", interrupt)
        run.train(config, tmp_path / "part", progress_bar=False)
    assert stopped.value.exit_status == 143
    assert results(tmp_path / "part")["status"] == "interrupted"
    last = tmp_path / "part/checkpoints/last.ckpt"
    assert torch.load(last, weights_only=True)["global_step"] == stop_at
    kept = last.read_bytes()

    torch.manual_seed(5)  # another process would be in another random state
    resumed = run.train(dataclasses.replace(config, checkpoint=str(last)), tmp_path / "rest", progress_bar=False)
    assert repeated(resumed) == repeated(whole)
    assert same(weights(tmp_path / "whole/checkpoints/last.ckpt"), weights(tmp_path / "rest/checkpoints/last.ckpt"))
    both = rows(tmp_path / "part") + rows(tmp_path / "rest")
    assert [row for row in both if "train/loss" in row] == [
        row for row in rows(tmp_path / "whole") if "train/loss" in row
    ]
    assert last.read_bytes() == kept  # resuming touches nothing of the old run


def test_a_signal_during_validation_loses_no_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run.train(with_dropout(), tmp_path / "whole", progress_bar=False)
    original = Measure.on_validation_epoch_end

    def interrupt(self: Measure, trainer: pl.Trainer, *arguments: Any) -> None:
        original(self, trainer, *arguments)
        if trainer.global_step == 3:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(Measure, "on_validation_epoch_end", interrupt)
    with pytest.raises(Interrupted):
        run.train(with_dropout(), tmp_path / "part", progress_bar=False)
    monkeypatch.undo()
    last = tmp_path / "part/checkpoints/last.ckpt"
    assert torch.load(last, weights_only=True)["global_step"] == 3
    resumed = run.train(with_dropout(checkpoint=str(last)), tmp_path / "rest", progress_bar=False)
    assert repeated(resumed) == repeated(whole)


def test_a_signal_between_two_steps_loses_no_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run.train(with_dropout(), tmp_path / "whole", progress_bar=False)
    original = ShuffledBatches._advance

    def interrupt(self: ShuffledBatches) -> None:
        original(self)
        if self.epoch == 1 and self.batch == 1:  # the fourth batch is fetched, its step has not begun
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(ShuffledBatches, "_advance", interrupt)
    with pytest.raises(Interrupted):
        run.train(with_dropout(), tmp_path / "part", progress_bar=False)
    monkeypatch.undo()
    last = tmp_path / "part/checkpoints/last.ckpt"
    assert torch.load(last, weights_only=True)["global_step"] == 4
    resumed = run.train(with_dropout(checkpoint=str(last)), tmp_path / "rest", progress_bar=False)
    assert repeated(resumed) == repeated(whole)


def test_a_second_signal_ends_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = StopOnSignal.on_train_batch_start

    def interrupt(self: StopOnSignal, *arguments: Any) -> None:
        original(self, *arguments)
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        pytest.fail("went on")

    monkeypatch.setattr(StopOnSignal, "on_train_batch_start", interrupt)
    with pytest.raises(Interrupted) as stopped:
        run.train(small_config(), tmp_path / "run", progress_bar=False)
    assert stopped.value.exit_status == 130
    assert results(tmp_path / "run")["status"] == "interrupted"


@pytest.mark.parametrize(
    "changes",
    [{"seed": 2}, {"model": ModelConfig(width=24, heads=3)}, {"data": DataConfig(train_size=25)}, {"torch_threads": 2}],
)
def test_going_on_never_changes_what_is_trained(tmp_path: Path, changes: dict[str, Any]) -> None:
    run.train(small_config(), tmp_path / "a", progress_bar=False)
    last = str(tmp_path / "a/checkpoints/last.ckpt")
    with pytest.raises(ConfigError, match="the run of the checkpoint has"):
        run.train(small_config(checkpoint=last, **changes), tmp_path / "b", progress_bar=False)
    assert not (tmp_path / "b").exists()
    torch.set_num_threads(1)


def test_resuming_over_and_over_takes_no_step_too_many(tmp_path: Path) -> None:
    checkpoint = None
    for epochs in (1, 2, 3):
        trainer = TrainerConfig(max_steps=100, max_epochs=epochs, val_check_interval=50, log_every_n_steps=1)
        folder = tmp_path / str(epochs)
        run.train(small_config(trainer=trainer, checkpoint=checkpoint), folder, progress_bar=False)
        checkpoint = str(folder / "checkpoints/last.ckpt")
        assert [int(row["step"]) for row in rows(folder) if "train/loss" in row] == list(
            range(3 * epochs - 2, 3 * epochs + 1)
        )
    assert torch.load(checkpoint, weights_only=True)["global_step"] == 9


def test_resuming_at_the_limit_trains_nothing_and_says_so(tmp_path: Path) -> None:
    run.train(small_config(), tmp_path / "a", progress_bar=False)
    last = tmp_path / "a/checkpoints/last.ckpt"
    said: list[str] = []
    shorter = small_config(checkpoint=str(last), trainer=TrainerConfig(max_steps=5))
    metrics = run.train(shorter, tmp_path / "b", progress_bar=False, on_note=said.append)
    assert any("nothing to train" in note and "7" in note and "5" in note for note in said)
    assert metrics["truth/kl"] == results(tmp_path / "a")["metrics"]["truth/kl"]
    assert results(tmp_path / "b")["status"] == "finished"
    assert (tmp_path / "b/checkpoints/last.ckpt").read_bytes() == last.read_bytes()


@pytest.mark.parametrize(
    "limits, steps",
    [({"max_steps": 7}, 7), ({"max_steps": 100, "max_epochs": 2}, 6), ({"max_steps": 2, "max_epochs": 2}, 2)],
)
def test_whichever_limit_is_met_first_ends_the_run(tmp_path: Path, limits: dict[str, int], steps: int) -> None:
    run.train(small_config(trainer=TrainerConfig(**limits)), tmp_path / "a", progress_bar=False)
    assert torch.load(tmp_path / "a/checkpoints/last.ckpt", weights_only=True)["global_step"] == steps
    assert any("train/loss" in row for row in rows(tmp_path / "a"))  # even where the log interval is longer


# ---- failures ------------------------------------------------------------------------------------------------------


def test_a_failed_run_says_why_in_its_folder(tmp_path: Path) -> None:
    config = small_config(optimizer=OptimizerConfig(learning_rate=1e30))
    with pytest.raises(DivergedError, match="diverged"):
        run.train(config, tmp_path / "run", progress_bar=False)
    content = results(tmp_path / "run")
    assert content["status"] == "failed"
    assert "DivergedError" in content["error"]
    assert content["metrics"] == {}
    assert "Traceback" in (tmp_path / "run" / "error.txt").read_text()


def test_a_kill_leaves_a_folder_that_says_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """results.json is right from the first moment on, so that SIGKILL needs no last word."""
    seen: list[str] = []
    original = StopOnSignal.on_train_batch_start

    def look(self: StopOnSignal, *arguments: Any) -> None:
        original(self, *arguments)
        seen.append(results(tmp_path / "run")["status"])

    monkeypatch.setattr(StopOnSignal, "on_train_batch_start", look)
    run.train(small_config(), tmp_path / "run", progress_bar=False)
    assert set(seen) == {"interrupted"}


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"model": ModelConfig(context=6)}, "model.context=6.*no sentence has at most 5 words; the shortest has 6"),
        ({"data": DataConfig(holdout=0.01)}, "data.holdout=0.01"),
        ({"language": LanguageConfig(start="S", grammar="S -> 'a' [0.995]")}, "sum to 0.995"),
        ({"language": LanguageConfig(start="S", file="nowhere.txt")}, "language.file=nowhere.txt: No such file"),
        ({"checkpoint": "nowhere.ckpt"}, "checkpoint=nowhere.ckpt: no such file"),
    ],
)
def test_what_does_not_fit_is_said_before_anything_is_written(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        run.train(small_config(**changes), tmp_path / "run", progress_bar=False)
    assert not (tmp_path / "run").exists()


def test_a_context_that_cuts_the_language_says_how_much_it_keeps(tmp_path: Path) -> None:
    grammar = LanguageConfig(start="S", grammar="S -> 'a' [1/4] | 'a' 'b' [1/4] | 'a' 'b' 'c' [1/2]")
    said: list[str] = []
    config = small_config(language=grammar, model=ModelConfig(width=12, heads=3, context=3))
    metrics = run.train(config, tmp_path / "run", progress_bar=False, on_note=said.append)
    assert any("keeps 0.5 of its probability" in note for note in said)
    # The language is now a and ab, 1/2 each: ln 2 nats for 2.5 tokens in the mean, exact on the drawn sentences.
    assert 2 * math.log(2) / 6 < metrics["val/floor"] < 2 * math.log(2) / 4


# ---- after training ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [True, False])
def test_evaluate_gives_the_runs_own_measures_from_the_checkpoint_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, causal: bool
) -> None:
    config = small_config(model=ModelConfig(width=12, heads=3, causal=causal))
    trained = run.train(config, tmp_path / "run", progress_bar=False)
    moved = tmp_path / "elsewhere" / "only.ckpt"
    moved.parent.mkdir()
    (tmp_path / "run/checkpoints/last.ckpt").rename(moved)
    monkeypatch.chdir(moved.parent)
    _, measured = run.evaluate(EvaluateConfig(checkpoint="only.ckpt"))
    assert measured == {name: value for name, value in trained.items() if not name.startswith("train/")}
    assert list(moved.parent.iterdir()) == [moved]


def test_measures_do_not_depend_on_the_batch_size(tmp_path: Path) -> None:
    run.train(small_config(), tmp_path / "run", progress_bar=False)
    checkpoint = str(tmp_path / "run/checkpoints/last.ckpt")
    reference = run.evaluate(EvaluateConfig(checkpoint=checkpoint, batch_size=64))[1]
    for size in (1, 7):
        measured = run.evaluate(EvaluateConfig(checkpoint=checkpoint, batch_size=size))[1]
        assert measured == pytest.approx(reference, abs=1e-6)


def test_holdout_is_measured(tmp_path: Path) -> None:
    data = DataConfig(train_size=24, batch_size=8, validation_size=10, test_size=10, holdout=0.25)
    metrics = run.train(small_config(data=data), tmp_path / "run", progress_bar=False)
    assert metrics["truth/holdout_share"] == pytest.approx(2 / 8)
    assert 0 <= metrics["truth/holdout_mass"] <= 1
    # Another seed draws other samples; the sentences that were held out stay those.
    checkpoint = str(tmp_path / "run/checkpoints/last.ckpt")
    again = run.evaluate(EvaluateConfig(checkpoint=checkpoint, seed=5))[1]
    assert again["truth/holdout_mass"] == metrics["truth/holdout_mass"]
    assert again["sampled/distinct"] != metrics["sampled/distinct"]


@pytest.mark.parametrize("precision", ["64-true", "bf16-mixed", "bf16-true"])
def test_precisions_of_lightning_are_passed_through(tmp_path: Path, precision: str) -> None:
    trainer = TrainerConfig(max_steps=3, precision=precision)
    trained = run.train(small_config(trainer=trainer), tmp_path / "run", progress_bar=False)
    checkpoint = str(tmp_path / "run/checkpoints/last.ckpt")
    stored = torch.load(checkpoint, weights_only=True)["state_dict"]["model.head.weight"].dtype
    assert stored == {"64-true": torch.float64, "bf16-true": torch.bfloat16}.get(precision, torch.float32)
    _, measured = run.evaluate(EvaluateConfig(checkpoint=checkpoint))
    assert measured["truth/kl"] == trained["truth/kl"]


def test_gradients_are_clipped(tmp_path: Path) -> None:
    """With plain Adam a clipped first step equals an unclipped one, so the second moments are compared."""

    def second_moment(clip: float | None) -> float:
        folder = tmp_path / str(clip)
        trainer = TrainerConfig(max_steps=1, gradient_clip_val=clip)
        run.train(small_config(trainer=trainer), folder, progress_bar=False)
        state = torch.load(folder / "checkpoints/last.ckpt", weights_only=True)["optimizer_states"][0]["state"]
        return sum(float(moments["exp_avg_sq"].sum()) for moments in state.values())

    # Σ (1 − β₂) g² = 0.001 · norm²: the bound shows as its square.
    assert second_moment(0.01) == pytest.approx(0.001 * 0.01**2, rel=1e-4)
    assert second_moment(None) > 1e3 * 0.001 * 0.01**2


def test_a_notebook_needs_neither_hydra_nor_wandb(tmp_path: Path) -> None:
    config = TrainConfig(language=captions(), trainer=TrainerConfig(fast_dev_run=True), logger=small_config().logger)
    run.train(config, tmp_path / "run", progress_bar=False)
