"""What the tests share: the commands run in this process (an import costs seconds), and small configurations."""

import os
import runpy
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import yaml

from grammarlab.config import (
    DataConfig,
    GenerationConfig,
    LanguageConfig,
    LoggerConfig,
    LoggerName,
    ModelConfig,
    TrainConfig,
    TrainerConfig,
)

ROOT = Path(__file__).resolve().parent.parent

# A run that is over in a fraction of a second, and still does all that a run does.
SMALL = (
    "logger=csv",
    "data.train_size=24",
    "data.batch_size=8",
    "data.validation_size=10",
    "data.test_size=10",
    "trainer.max_steps=7",
    "trainer.val_check_interval=3",
    "trainer.checkpoint_interval=2",
    "trainer.log_every_n_steps=2",
    "generation.temperatures=[0.5,1]",
    "generation.samples=20",
    "generation.draws=5",
    "generation.recorded=4",
)


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Two workers of two threads each are many times slower than of one."""
    torch.set_num_threads(1)


@dataclass
class Ended:
    status: int
    out: str
    err: str

    @property
    def last_line(self) -> str:
        return self.out.strip().splitlines()[-1]


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Ended]:
    """`command("train", "model.width=8")`: what the command line does, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    monkeypatch.delenv("GRAMMARLAB_TRACEBACK", raising=False)

    def run(name: str, *arguments: str) -> Ended:
        monkeypatch.setattr(sys, "argv", [str(ROOT / "src" / f"{name}.py"), *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(sys.argv[0], run_name="__main__")
        os.environ.pop("HYDRA_FULL_ERROR", None)
        os.environ.pop("GRAMMARLAB_TRACEBACK", None)
        captured = capsys.readouterr()
        return Ended(int(ended.value.code or 0), captured.out, captured.err)

    return run


def captions() -> LanguageConfig:
    return LanguageConfig(**yaml.safe_load((ROOT / "conf/language/captions.yaml").read_text()))


def small_config(**changes: object) -> TrainConfig:
    """The configuration of `SMALL`, for those that need no command line."""
    parts: dict[str, object] = {
        "language": captions(),
        "data": DataConfig(train_size=24, batch_size=8, validation_size=10, test_size=10),
        "model": ModelConfig(width=12, heads=3),
        "trainer": TrainerConfig(max_steps=7, val_check_interval=3, checkpoint_interval=2, log_every_n_steps=2),
        "generation": GenerationConfig(temperatures=[0.5, 1.0], samples=20, draws=5, recorded=4),
        "logger": LoggerConfig(name=LoggerName.csv),
    }
    return TrainConfig(**(parts | changes))  # type: ignore[arg-type]
