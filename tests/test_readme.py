"""Every command of the README runs; every file that it points to is there."""

import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import ROOT, SMALL, Ended

from grammarlab import benchmark

README = (ROOT / "README.md").read_text(encoding="utf-8")
LINES = [line for block in re.findall(r"```sh\n(.*?)```", README, re.S) for line in block.strip().splitlines()]
PYTHON = [line for line in LINES if line.startswith("python src/")]
Command = Callable[..., Ended]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run and a sweep in it, made once."""
    return tmp_path_factory.mktemp("readme")


def arguments_of(line: str, trained: Path) -> tuple[str, list[str]]:
    for shown, folder in (("runs/RUN", "run"), ("runs/GPT2", "gpt2"), ("sweeps/SWEEP", "sweep")):
        line = line.replace(f"outputs/{shown}", str(trained / folder))
    words = shlex.split(line)
    return Path(words[1]).stem, words[2:]


def train_once(command: Command, trained: Path) -> None:
    if not (trained / "run").exists():
        gpt2 = ("model=gpt2", "model.width=12", "model.heads=3", "model.depth=1", "model.context=9")
        for options in (
            (*SMALL, f"hydra.run.dir={trained / 'run'}"),
            (*SMALL, *gpt2, f"hydra.run.dir={trained / 'gpt2'}"),
            ("-m", *SMALL, "model.causal=true,false", f"hydra.sweep.dir={trained / 'sweep'}"),
        ):
            assert command("train", *options).status == 0
        assert command("export", f"checkpoint={trained / 'gpt2' / 'checkpoints/last.ckpt'}").status == 0


@pytest.mark.parametrize("line", PYTHON)
def test_every_python_command_runs(command: Command, trained: Path, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    here = Path.cwd()
    train_once(command, trained)
    for file in re.findall(r"\w+\.grammar", line):
        (making,) = [other for other in LINES if other.startswith("printf") and file in other]
        subprocess.run(making, shell=True, check=True, cwd=here)
    name, arguments = arguments_of(line, trained)
    if name == "train" and "--cfg" not in arguments and not any(a.startswith("checkpoint=") for a in arguments):
        # The same command on less data; what the README says comes last, and wins.
        small = [option for option in SMALL if not any(a.split("=")[0] == option.split("=")[0] for a in arguments)]
        steps = ["trainer.max_steps=60", "trainer.val_check_interval=60"] if "warmup" in line else []
        flags = [a for a in arguments if a == "-m"]
        arguments = [*flags, *small, *steps, *(a for a in arguments if a not in flags)]
    if name == "benchmark":
        arguments += ["repeats=2", "steps=3"]
        monkeypatch.setattr(benchmark.generation, "SIZES", [(32, 4, 1, 9, 2), (32, 4, 1, 9, 16)])
        monkeypatch.setattr(benchmark.generation, "GPT2", {"width": 32, "heads": 4, "depth": 2, "context": 40})
        monkeypatch.setattr(benchmark.cache, "CONTEXTS", (9, 33))
        monkeypatch.setattr(benchmark.cache, "BATCHES", (1, 16))
    monkeypatch.setattr("sys.stdin", io.StringIO("a photo\n"))
    ended = command(name, *arguments)
    assert ended.status == 0, ended.err
    assert ended.out


def test_there_are_commands_to_run() -> None:
    assert len(PYTHON) >= 15


EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.S)


@pytest.mark.parametrize("example, printed", list(zip(EXAMPLES, ["finished", "2.0794", "True"], strict=True)))
def test_the_python_examples_run(command: Command, trained: Path, tmp_path: Path, example: str, printed: str) -> None:
    train_once(command, trained)
    done = subprocess.run(
        [sys.executable, "-c", example.replace("outputs/sweeps/SWEEP", str(trained / "sweep"))],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert printed in done.stdout


@pytest.mark.parametrize("target", re.findall(r"make (\w+)", "\n".join(LINES)))
def test_every_make_target_is_there(target: str) -> None:
    shown = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    does = {"train": "src/train.py", "test": "pytest", "check": "mypy", "setup": "", "sync": "wandb sync"}
    assert does[target] in shown


def test_the_makefile_installs_as_the_readme_says() -> None:
    (line,) = [line for line in LINES if "pip install" in line]
    assert line.split("install", 1)[1].strip() in (ROOT / "Makefile").read_text()


def test_every_link_leads_to_a_file() -> None:
    for target in re.findall(r"\]\(([^)]+)\)", README):
        assert (ROOT / target).exists(), target


def test_every_measure_of_a_run_is_explained(command: Command) -> None:
    ended = command("train", *SMALL, "data.holdout=0.25")
    header = (Path(ended.last_line) / "metrics.csv").read_text().splitlines()[0].split(",")
    for name in header:
        last = re.sub(r"_(low|high)$", "", name.split("/")[-1])
        assert last in README, name
