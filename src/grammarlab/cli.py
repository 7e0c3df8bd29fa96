"""From the command line to a run: the one module that knows Hydra.

It imports nothing heavy, so that `--help`, `--cfg job` and a mistyped option are answered at once; the heavy rooms are
imported by what runs.
"""

from __future__ import annotations

import gc
import io
import math
import os
import secrets
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from grammarlab import record
from grammarlab.config import (
    BenchmarkConfig,
    ConfigError,
    DashboardConfig,
    EvaluateConfig,
    ExportConfig,
    GenerateConfig,
    LanguageCheckConfig,
    TrainConfig,
)
from grammarlab.options import one_line, to_config

if TYPE_CHECKING:
    from rich.console import Console

    from grammarlab.sweep import Comparison


for _command, _schema in (
    ("train", TrainConfig),
    ("evaluate", EvaluateConfig),
    ("generate", GenerateConfig),
    ("export", ExportConfig),
    ("benchmark", BenchmarkConfig),
    ("language", LanguageCheckConfig),
    ("dashboard", DashboardConfig),
):
    ConfigStore.instance().store(name=f"{_command}_schema", node=_schema)

# `2026-01-31_12-00-00-1f2e`: in order of time, and not shared by two runs that start in the same second.
OmegaConf.register_new_resolver(
    "run_id",
    lambda: f"{time.strftime('%Y-%m-%d_%H-%M-%S')}-{secrets.token_hex(2)}",
    use_cache=True,
    replace=True,
)


class SweepWatch(Callback):
    """Remembers where the sweep of this process is, for the report at its end, and which options it sweeps.

    Hydra sends the object to the processes of a parallel launcher, so that a job there knows the latter too.
    """

    folder: Path | None = None
    hold: record.Hold | None = None
    swept: tuple[str, ...] = ()

    def __init__(self) -> None:
        self._swept: tuple[str, ...] = ()

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        SweepWatch.folder = Path(config.hydra.sweep.dir)
        SweepWatch.folder.mkdir(parents=True, exist_ok=True)
        SweepWatch.hold = record.Hold(SweepWatch.folder)  # a board sees that jobs may still come
        overrides = OverridesParser.create().parse_overrides(list(config.hydra.overrides.task))
        in_config = config.hydra.sweeper.get("params") or {}
        self._swept = (*map(str, in_config), *(o.key_or_group for o in overrides if o.is_sweep_override()))

    def on_job_start(self, config: DictConfig, **kwargs: Any) -> None:
        SweepWatch.swept = self._swept

    @classmethod
    def let_go(cls) -> None:
        """No job comes any more."""
        if cls.hold is not None:
            cls.hold.close()
            cls.hold = None


def start(main: Callable[[], Any], schema: type) -> None:
    """Run a Hydra main: one line for what the user got wrong, the report of a sweep, an exit status that is right.

    `schema`: the dataclass of its options, among which a misspelt one is looked for.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without Unicode gets `?`, not a traceback
    os.environ.setdefault("GRAMMARLAB_TRACEBACK", os.environ.get("HYDRA_FULL_ERROR", ""))
    os.environ["HYDRA_FULL_ERROR"] = "1"  # so that the errors come here and not to Hydra's own printer
    signal.signal(signal.SIGTERM, _terminate)
    SweepWatch.folder = None
    status = 0
    try:
        with errors_said(schema):
            main()
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    unfinished = _report_sweep()
    SweepWatch.let_go()
    status = status or unfinished
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        status = _reader_gone()
    sys.exit(status)


@contextmanager
def errors_said(schema: type) -> Iterator[None]:
    """Turn an error into what is said of it and an exit status, before Hydra says it in many lines."""
    try:
        yield
    except BrokenPipeError:
        raise SystemExit(_reader_gone()) from None
    except (ConfigError, HydraException, OmegaConfBaseException, OSError) as error:
        if os.environ.get("GRAMMARLAB_TRACEBACK"):
            traceback.print_exc()
        print(f"error: {one_line(error, schema)}", file=sys.stderr)
        raise SystemExit(1) from None
    except Exception:
        traceback.print_exc()
        raise SystemExit(1) from None


def _reader_gone() -> int:
    """`… | head` has read enough: no more is written, and Python has nothing to complain about at its exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 128 + signal.SIGPIPE


def _terminate(signum: int, frame: Any) -> None:
    raise SystemExit(128 + signum)


@contextmanager
def heavy_imports() -> Iterator[None]:
    """Garbage collection off while hundreds of thousands of objects are made that stay: faster, and again at exit."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


# Said by the title in other words, or of no weight there.
_NOT_IN_TITLE = {
    "checkpoint",
    "language",
    "language.file",
    "language.start",
    "logger",
    "name",
    "seed",
    "trainer.max_steps",
}

# ---- training ------------------------------------------------------------------------------------------------------


def train_job(config: DictConfig) -> float | None:
    """One run, alone or as a job of a sweep; returns truth/kl, for a sweeper that minimises.

    In a sweep a job that fails is recorded in its own folder and the sweep goes on; `start` reports it, with status 1.
    """
    with heavy_imports():
        from rich.console import Console

        from grammarlab import parts, report, run
        from grammarlab.callbacks import Interrupted

    console = Console()
    hydra = HydraConfig.get()
    folder = Path(hydra.runtime.output_dir)
    sweeping = hydra.mode == RunMode.MULTIRUN
    overrides = [override for override in hydra.overrides.task if not override.startswith("hydra")]
    differing = [
        override for override in overrides if sweeping and override.split("=")[0].lstrip("+") in SweepWatch.swept
    ]
    shown = relative(folder)
    if sweeping:
        console.print(f"[bold]job {hydra.job.num}[/] {' '.join(differing)}", highlight=False, soft_wrap=True)
    alone = not sweeping or "basic_launcher" in hydra.launcher._target_
    try:
        train_config = to_config(config, TrainConfig)
        if train_config.checkpoint is not None:
            train_config = _resumed(config, train_config.checkpoint, overrides)
        train_config = parts.with_grammar_inline(train_config)
        metrics = run.train(
            train_config,
            folder,
            name=" ".join(differing) or None,
            group=Path(hydra.sweep.dir).name if sweeping else None,
            progress_bar=alone and console.is_terminal,
            on_note=lambda note: console.print(f"[yellow]note[/]: {note}", highlight=False),
        )
    except Interrupted as error:
        console.print(f"interrupted by {error}", shown, sep="\n", highlight=False, soft_wrap=True)
        raise SystemExit(error.exit_status) from None
    except Exception as error:
        if not sweeping:
            if isinstance(error, (ConfigError, OmegaConfBaseException)) and not (folder / "results.json").exists():
                _remove_traces(folder)
            with errors_said(TrainConfig):
                raise
        record.record_failure(folder, error, " ".join(differing) or folder.name)
        console.print(
            f"job {hydra.job.num}: [bold red]failed[/]: {one_line(error, TrainConfig)}", highlight=False, soft_wrap=True
        )
        return math.nan
    title = f"{train_config.language.name}, {train_config.trainer.max_steps} steps, seed {train_config.seed}"
    title += "".join(f"\n{override}" for override in overrides if override.split("=")[0] not in _NOT_IN_TITLE)
    if train_config.trainer.fast_dev_run:
        console.print("a dev run: every part ran once; its folder holds no result")
    elif sweeping:
        console.print(f"job {hydra.job.num}: {report.one_line(metrics)}", highlight=False, soft_wrap=True)
    else:
        report.show(report.summary(metrics, train_config.generation.temperatures, title))
    console.print(str(shown), highlight=False, soft_wrap=True)
    return metrics.get("truth/kl")


def _remove_traces(folder: Path) -> None:
    """Nothing was begun: remove what Hydra has put there, and the folder if that was all."""
    shutil.rmtree(folder / ".hydra", ignore_errors=True)
    if folder != Path.cwd() and not any(folder.iterdir()):
        folder.rmdir()


def _resumed(config: DictConfig, checkpoint: str, overrides: Sequence[str]) -> TrainConfig:
    """The checkpoint's own configuration with what this command line says; `run.train` refuses what cannot change."""
    from grammarlab import parts

    parts.check_resumable(checkpoint)
    saved, _ = parts.load_checkpoint(checkpoint)
    merged = OmegaConf.structured(saved)
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        key = override.key_or_group.replace("/", ".")
        if OmegaConf.select(config, key, default=MISSING) == MISSING:
            raise ConfigError(f"{override.input_line}: with a checkpoint its run's options are taken; name each change")
        OmegaConf.update(merged, key, OmegaConf.select(config, key), merge=False)
    return to_config(merged, TrainConfig)


def _report_sweep() -> int:
    """The table of this process's sweep, then its jobs that did not finish, then its folder; 1 if there are any."""
    folder = SweepWatch.folder
    if folder is None or not folder.is_dir():
        return 0
    with heavy_imports():
        from rich.console import Console

        from grammarlab import report, sweep

    console = Console()
    try:
        runs = sweep.read_runs([folder])
    except ValueError:  # no job began, and what was wrong is said
        (folder / "multirun.yaml").unlink(missing_ok=True)
        if not any(folder.iterdir()):
            folder.rmdir()
        return 1
    comparison = sweep.compare(runs)
    if comparison.settings:
        report.show(sweep.table(comparison))
    print_unfinished(console, comparison)
    console.print(str(relative(folder)), highlight=False, soft_wrap=True)
    return int(any(run.status != "dev" for run in comparison.unfinished))


def print_unfinished(console: Console, comparison: Comparison) -> None:
    for note in comparison.notes:
        console.print(f"[yellow]note[/]: {note}", highlight=False, soft_wrap=True)
    for run in comparison.unfinished:
        reason = next(iter((run.error or "no result kept").splitlines()))
        console.print(
            f"[bold red]{run.status}[/] {run.folder.name} ({run.name}): {reason}", highlight=False, soft_wrap=True
        )


def relative(folder: Path) -> Path:
    try:
        return folder.absolute().relative_to(Path.cwd())
    except ValueError:
        return folder
