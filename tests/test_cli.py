"""The command line: what runs, what is refused and how it is said, exit statuses, sweeps."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml
from conftest import ROOT, SMALL, Ended

Command = Callable[..., Ended]
TRAIN = ROOT / "src" / "train.py"


def results(folder: str | Path) -> dict[str, object]:
    content: dict[str, object] = json.loads((Path(folder) / "results.json").read_text())
    return content


# ---- one run -------------------------------------------------------------------------------------------------------


def test_a_terminal_without_unicode_and_a_narrow_one_lose_no_number(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(TRAIN), *SMALL],
        cwd=tmp_path,
        env={**os.environ, "PYTHONIOENCODING": "ascii", "COLUMNS": "50"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert len(re.findall(r"\d\.\d{5}", done.stdout)) == 13
    assert "…" not in done.stdout


def test_a_run_prints_its_table_and_its_folder_last(command: Command) -> None:
    ended = command("train", *SMALL)
    assert (ended.status, ended.err) == (0, "")
    assert re.fullmatch(r"outputs/runs/\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d-[0-9a-f]{4}", ended.last_line)
    assert results(ended.last_line)["status"] == "finished"
    for shown in ("loss", "floor", "excess", "KL", "legal", "validity", "coverage", "distinct"):
        assert shown in ended.out


def test_a_dev_run_leaves_no_result_that_looks_real(command: Command) -> None:
    ended = command("train", *SMALL, "trainer.fast_dev_run=true")
    assert ended.status == 0
    assert results(ended.last_line)["status"] == "dev"
    assert results(ended.last_line)["metrics"] == {}


def test_leakage_is_flagged(command: Command) -> None:
    ended = command("train", *SMALL, "model.causal=false", "trainer.max_steps=150", "trainer.val_check_interval=150")
    assert "leakage" in ended.out
    metrics = results(ended.last_line)["metrics"]
    assert isinstance(metrics, dict)
    assert metrics["val/leakage"] == 1
    assert metrics["val/excess_loss"] < -0.01
    assert metrics["truth/kl"] > 1  # measured prefix by prefix: a full pass would look perfect


def test_resuming_takes_the_runs_own_options(command: Command) -> None:
    first = command("train", *SMALL, "model.width=20", "trainer.max_steps=4")
    last = f"{first.last_line}/checkpoints/last.ckpt"
    second = command("train", f"checkpoint={last}", "trainer.max_steps=6")
    assert second.status == 0, second.err
    config = yaml.safe_load((Path(second.last_line) / "config.yaml").read_text())
    assert (config["model"]["width"], config["trainer"]["max_steps"], config["checkpoint"]) == (20, 6, last)
    assert config["data"]["batch_size"] == 8
    assert torch.load(Path(second.last_line) / "checkpoints/last.ckpt", weights_only=True)["global_step"] == 6


def test_resuming_refuses_to_change_what_is_trained(command: Command) -> None:
    first = command("train", *SMALL)
    last = f"{first.last_line}/checkpoints/last.ckpt"
    refused = command("train", f"checkpoint={last}", "model.width=64")
    assert refused.status == 1
    assert "model.width=64" in refused.err and "model.width=32" in refused.err
    assert command("train", f"checkpoint={last}", "model.width=32", "trainer.max_steps=7").status == 0


def test_a_fixed_folder_is_not_used_twice(command: Command) -> None:
    assert command("train", *SMALL, "hydra.run.dir=mine").status == 0
    before = Path("mine/results.json").read_bytes()
    again = command("train", *SMALL, "seed=2", "hydra.run.dir=mine")
    assert again.status == 1
    assert "holds a run already" in again.err
    assert Path("mine/results.json").read_bytes() == before


def test_a_folder_of_the_users_is_never_removed(command: Command) -> None:
    Path("mine").mkdir()
    Path("mine/notes.txt").write_text("kept")
    for option in ("hydra.run.dir=mine", "hydra.run.dir=."):
        assert command("train", *SMALL, option, "model.heads=5").status == 1
    assert Path("mine/notes.txt").read_text() == "kept"
    assert sorted(path.name for path in Path.cwd().iterdir()) == ["mine"]


# ---- what is refused -------------------------------------------------------------------------------------------------

REFUSED = [
    (["model.causal=maybe"], "model.causal=maybe: must be true or false"),
    (["model.casual=false"], "model.casual: no such option; did you mean model.causal?"),
    (["+model.casual=false"], "model.casual: no such option; did you mean model.causal?"),
    (["model.width=10", "model.heads=3"], "model.heads=3: must divide model.width=10 evenly"),
    (["model.width=8.5"], "model.width=8.5: must be a whole number"),
    (["model.positions=nowhere"], "model.positions=nowhere: Invalid value 'nowhere', expected one of [learned"),
    (["optimizer=sgd"], "optimizer=sgd: no such choice; there are adam, adamw"),
    (["optimizer.learning_rate=0"], "optimizer.learning_rate=0.0: must be positive"),
    (["optimizer.weight_decay=0.1"], "optimizer.weight_decay=0.1: needs optimizer=adamw"),
    (["logger=csv", "logger.mode=online"], "logger.mode=online: needs logger=wandb"),
    (["seed=1,2"], "seed=1,2: to sweep over several values add -m"),
    (["seed=-1"], "seed=-1: must be from 0"),
    (["data.holdout=1"], "data.holdout=1.0"),
    (["data.train_size=0"], "data.train_size=0: must be at least 1"),
    (["generation.temperatures=[]"], "generation.temperatures=[]: must name at least one"),
    (["generation.temperatures=[nan]"], "generation.temperatures=nan"),
    (["trainer.precision=17"], "trainer.precision=17: must be one of 64-true"),
    (["trainer.accelerator=tpu"], "trainer.accelerator=tpu: Invalid value"),
    (["trainer.max_epochs=2", "data.train_size=null"], "trainer.max_epochs=2: has no meaning"),
    (["optimizer.warmup_steps=800"], "optimizer.warmup_steps=800: must be below trainer.max_steps=800"),
    (["language=nonesuch"], "language=nonesuch: no such choice; there are anbn, arithmetic, captions, "),
    (["language=file"], "language.file: must be given"),
    (["language=file", "language.file=nowhere", "language.start=S"], "language.file=nowhere: No such file"),
    (["language.start=T"], "language=captions: start symbol 'T' has no rule; the grammar defines Caption"),
    (["language.grammar='S -> \"a\" [0.5]'", "language.start=S"], "sum to 0.5"),
    (["checkpoint=nowhere"], "checkpoint=nowhere: no such file"),
    (["hydra.run.dir=/dev/null/run"], "/dev/null/run: Not a directory"),
    (["seed", "2"], "cannot read 'seed': options are written name=value, without blanks around the ="),
    (["name=(("], "cannot read 'name=((': a value with special characters needs quotes"),
]


@pytest.mark.parametrize("arguments, message", REFUSED, ids=[" ".join(arguments) for arguments, _ in REFUSED])
def test_bad_input_gets_one_line_and_leaves_nothing(command: Command, arguments: list[str], message: str) -> None:
    ended = command("train", *arguments)
    assert ended.status == 1
    assert ended.err.startswith("error: ")
    assert message in ended.err
    assert ended.err.count("\n") == 1
    assert ended.out == ""
    assert not list(Path.cwd().glob("outputs/*/*"))


def test_a_file_that_is_no_checkpoint_is_refused(command: Command) -> None:
    Path("some.ckpt").write_text("no")
    for name in ("train", "evaluate", "generate"):
        ended = command(name, "checkpoint=some.ckpt")
        assert ended.status == 1
        assert ended.err == "error: checkpoint=some.ckpt: is not a checkpoint of grammarlab\n"


def test_a_sweep_with_a_mistyped_value_is_refused_whole(command: Command) -> None:
    ended = command("train", "-m", *SMALL, "model.causal=true,maybe")
    assert ended.status == 1
    assert "model.causal=maybe: must be true or false" in ended.err
    assert not list(Path.cwd().glob("outputs/*/*"))


def test_numbers_are_numbers_in_every_route(command: Command) -> None:
    for value in ("1e-5", "0.00001"):
        ended = command("train", *SMALL, f"optimizer.learning_rate={value}", "trainer.max_steps=1")
        text = (Path(ended.last_line) / "config.yaml").read_text()
        assert yaml.safe_load(text)["optimizer"]["learning_rate"] == 1e-5


# ---- other commands --------------------------------------------------------------------------------------------------


def test_evaluate_repeats_the_runs_measures_and_generate_writes_json(command: Command) -> None:
    trained = command("train", *SMALL)
    checkpoint = Path(trained.last_line).absolute() / "checkpoints/last.ckpt"
    elsewhere = Path("elsewhere")
    elsewhere.mkdir()
    os.chdir(elsewhere)
    measured = json.loads(command("evaluate", f"checkpoint={checkpoint}", "json=true").out)
    recorded = results(checkpoint.parent.parent)["metrics"]
    assert isinstance(recorded, dict)
    assert measured == {name: value for name, value in recorded.items() if not name.startswith("train/")}

    table = command("evaluate", f"checkpoint={checkpoint}")
    assert "legal" in table.out

    lines = command("generate", f"checkpoint={checkpoint}", "prompt='a photo'", "samples=3", "json=true").out
    for line in lines.splitlines():
        sample = json.loads(line)
        names = ["prompt", "text", "words", "ended", "valid", "log_prob_language", "log_prob_model", "drawn"]
        assert list(sample) == names
        assert sample["prompt"] == "a photo"
        assert sample["text"] == " ".join(sample["words"])
        assert (sample["log_prob_language"] is None) == (not sample["valid"])
    assert len(lines.splitlines()) == 3
    shown = command("generate", f"checkpoint={checkpoint}", "samples=3", "temperature=0.8")
    assert "of 3 valid" in shown.out
    greedy = command("generate", f"checkpoint={checkpoint}", "samples=4", "temperature=0", "json=true")
    assert len(set(greedy.out.splitlines())) == 1
    assert list(Path.cwd().iterdir()) == []


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "checkpoint: must be given, as checkpoint=…"),
        (["checkpoint=nowhere"], "checkpoint=nowhere: no such file"),
        (["checkpoint=nowhere", "temperature=-1"], "temperature=-1.0: must be 0 (greedy) or positive and finite"),
        (["checkpoint=nowhere", "samples=0"], "samples=0: must be at least 1"),
        (["checkpoint=nowhere", "prompt=a", "prompts_file=b"], "prompts_file=b: and prompt exclude each other"),
    ],
)
def test_generate_says_what_is_wrong(command: Command, arguments: list[str], message: str) -> None:
    ended = command("generate", *arguments)
    assert (ended.status, ended.err) == (1, f"error: {message}\n")


# ---- sweeps ----------------------------------------------------------------------------------------------------------


def test_a_sweep_runs_every_job_lists_the_failed_and_exits_with_one(command: Command) -> None:
    ended = command("train", "-m", *SMALL, "model.heads=4,5,8", "seed=1,2")
    assert ended.status == 1
    folder = Path(ended.last_line)
    assert re.fullmatch(r"outputs/sweeps/\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d-[0-9a-f]{4}", str(folder))
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == list("012345")
    assert [results(folder / job)["status"] for job in "012345"] == ["finished"] * 2 + ["failed"] * 2 + ["finished"] * 2
    for job, seed in (("2", 1), ("3", 2)):
        said = (
            f"failed {job} (model.heads=5 seed={seed}): ConfigError: model.heads=5: must divide model.width=32 evenly"
        )
        assert said in ended.out
        assert "Traceback" in (folder / job / "error.txt").read_text()


def test_each_job_of_a_sweep_equals_the_same_run_alone(command: Command) -> None:
    swept = command("train", "-m", *SMALL, "model.dropout=0.1", "model.causal=true,false", "seed=3,4")
    assert swept.status == 0, swept.err
    jobs = {}
    for job in "0123":
        config = yaml.safe_load((Path(swept.last_line) / job / "config.yaml").read_text())
        jobs[config["model"]["causal"], config["seed"]] = results(Path(swept.last_line) / job)["metrics"]
    assert jobs.keys() == {(True, 3), (True, 4), (False, 3), (False, 4)}
    alone = command("train", *SMALL, "model.dropout=0.1", "model.causal=false", "seed=4")
    metrics = results(alone.last_line)["metrics"]
    for content in (metrics, jobs[False, 4]):
        assert isinstance(content, dict)
        del content["train/tokens_per_second"]
    assert metrics == jobs[False, 4]


def test_two_jobs_of_one_config_do_not_collide(command: Command) -> None:
    ended = command("train", "-m", *SMALL, "seed=1,1")
    assert ended.status == 0
    assert "1 of 2 runs repeat a seed" in ended.out
    assert [results(Path(ended.last_line) / job)["status"] for job in "01"] == ["finished"] * 2


def test_compare_writes_the_table_and_the_picture(command: Command) -> None:
    swept = command("train", "-m", *SMALL, "model.causal=true,false", "seed=1,2,3")
    ended = command("compare", swept.last_line)
    assert ended.status == 0, ended.err
    folder = Path(swept.last_line)
    assert ended.out.splitlines()[-2:] == [str(folder / "compare.csv"), str(folder / "compare.png")]
    assert (folder / "compare.png").read_bytes().startswith(b"\x89PNG")
    with (folder / "compare.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["model.causal"], row["seeds"]) for row in rows] == [("true", "3"), ("false", "3")]
    assert float(rows[0]["truth/kl_low"]) <= float(rows[0]["truth/kl"]) <= float(rows[0]["truth/kl_high"])


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["nowhere"], "nowhere: no such folder"),
        (["."], ".: holds no run (a run has a results.json)"),
        ([".", "measure=x"], "measure=x: Key 'measure' not in 'CompareConfig'; options are: measures, baseline, into"),
        ([".", "measures=x"], "measures=x: must be a list, written [a,b]; options are: measures, baseline, into"),
        ([".", ".."], "into: must be given with several folders: into=FOLDER is where the table is written"),
        ([], "compare.py: name at least one folder, as in: python src/compare.py outputs/sweeps/…"),
    ],
)
def test_compare_says_what_is_wrong(command: Command, arguments: list[str], message: str) -> None:
    ended = command("compare", *arguments)
    assert (ended.status, ended.err) == (1, f"error: {message}\n")


# ---- in processes of their own: what a signal, a kill or a second process does --------------------------------------


def start_train(folder: Path, *arguments: str, sweep: bool = False) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(TRAIN), *(["-m"] if sweep else []), *SMALL, *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    """Poll for a file: the process cannot tell us more without changing what is tested."""
    while not path.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


@pytest.mark.parametrize("signum, status", [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_a_signal_ends_with_its_status_and_a_state_to_go_on_from(
    command: Command, tmp_path: Path, signum: int, status: int
) -> None:
    process = start_train(tmp_path, "trainer.max_steps=1000000", "trainer.val_check_interval=1000", "hydra.run.dir=run")
    wait_for(tmp_path / "run/checkpoints/last.ckpt", process)
    process.send_signal(signum)
    out, err = process.communicate(timeout=60)
    assert process.returncode == status, err
    assert results(tmp_path / "run")["status"] == "interrupted"
    if signum != signal.SIGKILL:
        assert out.strip().splitlines()[-1] == "run"
        assert err == ""
    step = torch.load(tmp_path / "run/checkpoints/last.ckpt", weights_only=True)["global_step"]
    resumed = command("train", "checkpoint=run/checkpoints/last.ckpt", f"trainer.max_steps={step + 2}")
    assert resumed.status == 0, resumed.err


def test_a_signal_stops_the_rest_of_a_sweep_with_its_status(tmp_path: Path) -> None:
    process = start_train(tmp_path, "seed=1,2", "trainer.max_steps=1000000", "hydra.sweep.dir=sweep", sweep=True)
    wait_for(tmp_path / "sweep/0/checkpoints/last.ckpt", process)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 143
    assert results(tmp_path / "sweep/0")["status"] == "interrupted"
    assert not (tmp_path / "sweep/1").exists()
    assert "interrupted 0 (seed=1): SIGTERM" in out


def test_joblib_gives_the_same_numbers_and_reports_the_failed(command: Command, tmp_path: Path) -> None:
    process = start_train(
        tmp_path, "seed=1,2", "model.heads=4,5", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", sweep=True
    )
    out, err = process.communicate(timeout=120)
    assert process.returncode == 1, err
    folder = tmp_path / out.strip().splitlines()[-1]
    assert [results(folder / job)["status"] for job in "0123"] == ["finished", "failed", "finished", "failed"]
    alone = results(command("train", *SMALL, "seed=2").last_line)["metrics"]
    parallel = results(folder / "2")["metrics"]
    for content in (alone, parallel):
        assert isinstance(content, dict)
        del content["train/tokens_per_second"]
    assert alone == parallel


def test_csv_and_none_import_nothing_of_wandb_and_give_the_same_files(tmp_path: Path) -> None:
    # A package of that name that cannot be imported stands before the real one.
    (tmp_path / "wandb").mkdir()
    (tmp_path / "wandb" / "__init__.py").write_text("raise RuntimeError('wandb was imported')")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    for logger in ("csv", "none"):
        subprocess.run(
            [sys.executable, str(TRAIN), *SMALL, f"logger={logger}", f"hydra.run.dir={logger}"],
            cwd=tmp_path,
            env=environment,
            check=True,
            capture_output=True,
        )

    def rows(logger: str) -> list[dict[str, str]]:
        with (tmp_path / logger / "metrics.csv").open() as file:
            return [{k: v for k, v in row.items() if k != "train/tokens_per_second"} for row in csv.DictReader(file)]

    assert rows("csv") == rows("none")


def test_help_and_the_configuration_come_without_torch(tmp_path: Path) -> None:
    code = f"import runpy, sys; sys.argv = [{str(TRAIN)!r}, '--cfg', 'job', '--resolve']\n" + (
        "try:\n    runpy.run_path(sys.argv[0], run_name='__main__')\nexcept SystemExit as e:\n    assert not e.code\n"
        "assert 'torch' not in sys.modules and 'lightning' not in sys.modules and 'wandb' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "causal: true" in done.stdout
    assert "${" not in done.stdout
    assert list(tmp_path.iterdir()) == []
