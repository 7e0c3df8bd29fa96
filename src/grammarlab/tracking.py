"""Where a run is written: its own CSV always, Weights & Biases besides."""

from __future__ import annotations

import csv
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning.pytorch.loggers.logger import Logger

from grammarlab import figures
from grammarlab.config import ConfigError, LoggerConfig, LoggerMode, LoggerName
from grammarlab.evaluation import Comparison, Sample, Truth

if TYPE_CHECKING:
    from lightning.pytorch.loggers import WandbLogger

SAMPLE_COLUMNS = ("temperature", "text", "valid", "log_prob_language", "log_prob_model")
# W&B's server refuses longer ones, but only when an offline run is uploaded: after the experiment.
NAME_LIMIT, TAG_LIMIT = 128, 64
STEP = "trainer/global_step"  # the name under which Lightning's logger writes the step


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
def wandb_logger(
    config: LoggerConfig,
    run_config: Mapping[str, Any],
    *,
    measures: Sequence[str],
    name: str,
    group: str | None,
    tags: Sequence[str],
    enabled: bool = True,
) -> Iterator[WandbLogger | None]:
    """A W&B run in the one store, closed in every case with its exit code; None where the logger is another.

    Nothing of wandb is imported unless it is used. With WANDB_MODE=disabled in the environment nothing is written.
    """
    if not enabled or config.name != LoggerName.wandb or os.environ.get("WANDB_MODE") == "disabled":
        yield None
        return
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
                tags=[shortened(tag, TAG_LIMIT) for tag in tags],
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
            yield WandbLogger(experiment=run)
            exit_code = 0
        except BaseException as error:
            exit_code = getattr(error, "exit_status", 1)
            raise
        finally:
            run.finish(exit_code=exit_code)


def wandb_run_folder(logger: WandbLogger) -> str:
    return str(Path(logger.experiment.dir).parent)


def write_samples(path: Path, samples: Sequence[Sample]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(SAMPLE_COLUMNS)
        writer.writerows(_sample_rows(samples))


def write_positions(path: Path, comparison: Comparison, truth: Truth) -> None:
    """A row for each predicted token of a sentence: nats, means over the true sentences that get there."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["position", "reached", "entropy", "loss", "kl"])
        columns = (truth.reached, truth.entropy_by_position, comparison.loss_by_position, comparison.kl_by_position)
        writer.writerows((i, *row) for i, row in enumerate(zip(*(c.tolist() for c in columns), strict=True), start=1))


def log_result(logger: WandbLogger, samples: Sequence[Sample], loss: Sequence[float], entropy: Sequence[float]) -> None:
    """The table of samples and the picture of loss by position, once at the end of a run."""
    import wandb

    logger.experiment.log(
        {
            "samples": wandb.Table(columns=list(SAMPLE_COLUMNS), data=_sample_rows(samples)),
            "loss_by_position": wandb.Image(figures.loss_by_position(loss, entropy)),
        }
    )


def _sample_rows(samples: Sequence[Sample]) -> list[list[Any]]:
    return [[s.temperature, s.text, "yes" if s.valid else "no", s.log_prob_language, s.log_prob_model] for s in samples]


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
