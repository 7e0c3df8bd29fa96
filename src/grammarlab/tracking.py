"""Where a run is written: its own CSV always, Weights & Biases or TensorBoard besides."""

from __future__ import annotations

import csv
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import polars as pl
import yaml
from lightning.pytorch.loggers.logger import Logger

from grammarlab import figures
from grammarlab.config import ConfigError, LoggerConfig, LoggerMode, LoggerName
from grammarlab.measures import STEP
from grammarlab.record import CHANGES
from grammarlab.tables import table

if TYPE_CHECKING:
    import altair as alt
    from lightning.pytorch.loggers import TensorBoardLogger, WandbLogger

RunLogger: TypeAlias = "WandbLogger | TensorBoardLogger"
# W&B's server refuses longer ones, but only when an offline run is uploaded: after the experiment.
NAME_LIMIT, TAG_LIMIT = 128, 64


class MetricsFile(Logger):
    """`metrics.csv`: a row for each call, on disk when the call returns. `last` has each measure's last value.

    All columns are known from the start, so that the file only grows: Lightning's own logger writes the whole file anew
    at each new measure, and a kill at that moment loses it.
    """

    def __init__(self, path: Path, measures: Sequence[str]) -> None:
        super().__init__()
        self.last: dict[str, float] = {}
        self._file = path.open("x", newline="", encoding="utf-8")
        self._writer = csv.DictWriter(self._file, ["step", *measures])
        self._writer.writeheader()
        self._file.flush()

    @property
    def name(self) -> str:
        return "metrics"

    @property
    def version(self) -> str:
        return ""

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """The configuration stands in config.yaml."""

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        values = {name: value for name, value in metrics.items() if name != "epoch"}
        if not values:
            return
        self._writer.writerow({"step": step, **values})
        self._file.flush()
        self.last.update(values)

    def close(self) -> None:
        self._file.close()


def shortened(text: str, limit: int) -> str:
    """At most `limit` characters; what is cut is replaced by a hash of the whole, so that two names stay two."""
    if len(text) <= limit:
        return text
    return f"{text[: limit - 9]}-{hashlib.blake2b(text.encode(), digest_size=4).hexdigest()}"


def summary_of(measure: str) -> str:
    """Which value stands for a run in W&B's tables: the best one where there is a best, and the last."""
    if measure.endswith(("loss", "/kl", "/total_variation")) and not measure.endswith("excess_loss"):
        return "min,last"
    if measure.endswith(("/validity", "/coverage", "/legal_mass")):
        return "max,last"
    return "last"


@contextmanager
def run_logger(
    config: LoggerConfig,
    folder: Path,
    run_config: Mapping[str, Any],
    *,
    measures: Sequence[str],
    name: str,
    group: str | None,
    tags: Sequence[str],
    enabled: bool = True,
) -> Iterator[RunLogger | None]:
    """Where a run is written besides its own folder, closed in every case; None where nowhere.

    Nothing of wandb or tensorboard is imported unless it is used. With WANDB_MODE=disabled in the environment nothing
    is written for W&B.
    """
    if not enabled or config.name in (LoggerName.csv, LoggerName.none):
        yield None
    elif config.name == LoggerName.tensorboard:
        with _tensorboard_logger(folder, run_config) as logger:
            yield logger
    elif os.environ.get("WANDB_MODE") == "disabled":
        yield None
    else:
        with _wandb_logger(config, folder, run_config, measures=measures, name=name, group=group, tags=tags) as logger:
            yield logger


@contextmanager
def _tensorboard_logger(folder: Path, run_config: Mapping[str, Any]) -> Iterator[TensorBoardLogger]:
    """An event file in the run's own folder, so that `tensorboard --logdir` shows a sweep's jobs by their numbers."""
    if find_spec("tensorboard") is None:
        raise ConfigError('logger=tensorboard: needs the package tensorboard (pip install "grammarlab[tensorboard]")')
    from lightning.pytorch.loggers import TensorBoardLogger

    logger = TensorBoardLogger(save_dir=folder, name="", version="tensorboard", default_hp_metric=False)
    try:
        logger.experiment.add_text("config", "\n".join(f"    {line}" for line in _yaml_lines(run_config)))
        yield logger
    finally:
        logger.experiment.close()


def _yaml_lines(run_config: Mapping[str, Any]) -> list[str]:
    return yaml.safe_dump(dict(run_config), sort_keys=False, allow_unicode=True).splitlines()


@contextmanager
def _wandb_logger(
    config: LoggerConfig,
    folder: Path,
    run_config: Mapping[str, Any],
    *,
    measures: Sequence[str],
    name: str,
    group: str | None,
    tags: Sequence[str],
) -> Iterator[WandbLogger]:
    """A W&B run in the one store, closed in every case with its exit code."""
    store = Path(config.store).absolute()
    store.mkdir(parents=True, exist_ok=True)
    # Tables and caches are kept beside the runs: in a home folder they would be lost with the machine.
    folders = {f"WANDB_{kind.upper()}_DIR": str(store / kind) for kind in ("data", "cache", "config")}
    with _environment({**folders, "WANDB_ERROR_REPORTING": "false"}):
        import wandb
        from lightning.pytorch.loggers import WandbLogger

        # Not by Lightning, which would leave WANDB_MODE in the environment for whatever comes after.
        try:
            run = wandb.init(
                project=config.project,
                name=shortened(name, NAME_LIMIT),
                group=shortened(group, NAME_LIMIT) if group else None,
                tags=[shortened(tag, TAG_LIMIT) for tag in dict.fromkeys(tags) if tag],
                dir=store,
                mode="online" if config.mode == LoggerMode.online else "offline",
                config=dict(run_config),
                reinit="create_new",
                settings=wandb.Settings(console="off", silent=True, x_disable_stats=True),
            )
        except wandb.Error as error:
            raise ConfigError(
                f"logger.mode={config.mode}: Weights & Biases cannot be reached ({' '.join(str(error).split())}); "
                "log in with `wandb login`, or stay with logger.mode=offline"
            ) from error
        exit_code = 1
        try:
            run.define_metric(STEP)
            for measure in measures:
                run.define_metric(measure, step_metric=STEP, summary=summary_of(measure))
            if (folder / CHANGES).exists():  # copied: W&B would keep a link, which an upload may find broken
                kept = shutil.copy(folder / CHANGES, run.dir)
                run.save(kept, base_path=run.dir, policy="now")
            yield WandbLogger(experiment=run)
            exit_code = 0
        except BaseException as error:
            exit_code = getattr(error, "exit_status", 1)
            raise
        finally:
            run.finish(exit_code=exit_code)


def wandb_run_folder(logger: RunLogger) -> str:
    return str(Path(logger.experiment.dir).parent)


def pictures(
    tables: Mapping[str, pl.DataFrame], curves: pl.DataFrame, sampled: pl.DataFrame, *, setting: str, seed: int
) -> dict[str, alt.ConcatChart]:
    """The figures of one run by name: the same as in a board, of a sweep of one."""
    mark = {"setting": pl.lit(setting), "seed": pl.lit(seed)}
    sentences = tables["sentences"]
    exact = tables.get("temperatures", table("temperatures")).filter(pl.col("temperature") > 0)
    return {
        "learning_curves": figures.learning_curves(curves.with_columns(**mark)),
        "positions": figures.positions(tables["positions"].with_columns(**mark)),
        "temperatures": figures.temperatures(
            exact.with_columns(**mark), sampled.filter(pl.col("temperature") > 0).with_columns(**mark)
        ),
        "sentences": figures.sentences(sentences.with_columns(**mark), (sentences["exact"] == "yes").all()),
        "attention": figures.attention(tables["attention"]),
        "next_words": figures.next_words(tables["next_words"]),
    }


def log_result(logger: RunLogger, tables: Mapping[str, pl.DataFrame], drawn: Mapping[str, alt.ConcatChart]) -> None:
    """The tables of samples and of the sentences' probabilities, and the figures, once at the end of a run."""
    with tempfile.TemporaryDirectory() as folder:
        paths = {name: Path(folder) / f"{name}.png" for name in drawn}
        for name, path in paths.items():
            figures.save(drawn[name], path)
        if logger.__class__.__name__ == "WandbLogger":
            import wandb

            logged = {
                name: wandb.Table(columns=[*tables[name].columns], data=[list(row) for row in tables[name].rows()])
                for name in ("samples", "sentences")
            }
            images = {f"figures/{name}": wandb.Image(str(path)) for name, path in paths.items()}
            logger.experiment.log({**logged, **images})
        else:
            from PIL import Image

            for name, path in paths.items():
                pixels = np.asarray(Image.open(path).convert("RGB"))
                logger.experiment.add_image(f"figures/{name}", pixels, dataformats="HWC")
            for name in ("samples", "sentences"):
                logger.experiment.add_text(name, _markdown(tables[name]))


def _markdown(content: pl.DataFrame, rows: int = 200) -> str:
    """For TensorBoard's texts: words in code marks, so that `<` and `*` are shown as they are."""

    def cell(value: object) -> str:
        if isinstance(value, str) and value:
            return f"`{value}`".replace("|", "\\|")
        return "" if value is None else str(value)

    lines = [content.columns, ["---"] * content.width, *([cell(v) for v in row] for row in content.head(rows).rows())]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
