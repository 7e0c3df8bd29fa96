"""A run from its configuration to its results: build, fit, evaluate, record, resume. Knows no Hydra.

config = TrainConfig(language=LanguageConfig(start="S", grammar="S -> 'a' [1/2] | 'b' [1/2]"))
metrics = train(config, Path("outputs/runs/mine"))
"""

from __future__ import annotations

import dataclasses
import logging
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.profilers import PassThroughProfiler

from grammarlab import findings, tables, tracking
from grammarlab.callbacks import Checkpoints, Interrupted, Measure, ProgressBar, StopOnSignal, copy_whole
from grammarlab.config import Accelerator, ConfigError, EvaluateConfig, LoggerName, TrainConfig
from grammarlab.measures import TRAIN, measure_names, split_measures
from grammarlab.parts import (
    Parts,
    build_parts,
    check_resume,
    config_to_dict,
    load_checkpoint,
    restore,
    with_grammar_inline,
)
from grammarlab.record import Record
from grammarlab.task import DecoderTask

# What Lightning and torch say on a run of this kind that its user can do nothing about.
_NOISE = (
    "The .* does not have many workers",
    "Trainer was configured with `fast_dev_run`",
    "The .trainer.(logger|loggers). is not set",
    ".*has been deprecated.*",
    "The anonymous setting has no effect",
    "`isinstance.treespec, LeafSpec.` is deprecated",
    "Found .* module.* in eval mode at the start of training",
    ".*`srun` command is available on your system but is not used.*",
    "CUDA is not available or torch_xla is imported",
    ".*GPU available but not used.*",
    "Checkpoint directory .* exists and is not empty",
    "You're resuming from a checkpoint that ended before the epoch ended.*",
)

# Tokens whose exact distributions are there before anyone wonders.
_SOON = 100_000

# ---- training ------------------------------------------------------------------------------------------------------


def train(
    config: TrainConfig,
    folder: Path,
    *,
    name: str | None = None,
    group: str | None = None,
    progress_bar: bool = True,
    on_note: Callable[[str], None] = print,
) -> dict[str, float]:
    """Run `config` in `folder`, which must hold no run yet; returns the last value of each measure.

    The folder gets config.yaml, metrics.csv, results.json, samples.csv and checkpoints. Whatever happens, results.json
    says how the run ended: it says `interrupted` from the start, so that a kill needs no last word.

    Raises `ConfigError` before anything is written, `Interrupted` after a signal, and what training raises.
    """
    config = with_grammar_inline(config)
    torch.set_num_threads(config.torch_threads)
    if (folder / "results.json").exists():
        raise ConfigError(f"{folder}: holds a run already; a run goes into a folder of its own")
    if config.checkpoint is not None:
        check_resume(load_checkpoint(config.checkpoint)[0], config)
    _check_device(config)
    parts = build_parts(config)
    if parts.note:
        on_note(parts.note)
    if not parts.truth.exact and parts.truth.predicted.sum() > _SOON:
        on_note(
            f"the exact distributions along {len(parts.truth.sentences)} sentences are found first, which may take a "
            "while; fewer: evaluation.samples"
        )

    dev = config.trainer.fast_dev_run
    plain = config_to_dict(config)
    folder.mkdir(parents=True, exist_ok=True)
    name = config.name or name or folder.name
    record = Record(folder, plain, name)
    checkpoints = None if dev else Checkpoints(folder / "checkpoints", config.trainer.checkpoint_interval)
    stop = StopOnSignal(checkpoints)
    measure = _measure(config, parts, config.seed)
    measures = _all_measures(config, parts)
    try:
        with (
            stop.listening(),
            quiet_libraries(),
            _metrics_file(None if dev else folder / "metrics.csv", measures) as metrics_file,
            tracking.run_logger(
                config.logger,
                folder,
                {**plain, "folder": str(folder), "commit": record.commit},
                measures=measures,
                name=name,
                group=config.group or group,
                tags=[*config.tags, config.language.name],
                enabled=not dev,
            ) as logger,
        ):
            if config.logger.name == LoggerName.wandb and logger is not None:
                record.wandb_run = tracking.wandb_run_folder(logger)
            task = DecoderTask(
                parts.model,
                config.optimizer,
                log_every_n_steps=config.trainer.log_every_n_steps,
                hyperparameters={"config": plain},
            )
            callbacks: list[Callback] = [measure, *([checkpoints] if checkpoints else []), stop]
            if progress_bar and config.trainer.enable_progress_bar:
                callbacks.insert(0, ProgressBar())
            loggers = [each for each in (metrics_file, logger) if each is not None]
            trainer = build_trainer(config, folder, loggers, callbacks, max_steps=_max_steps(config))
            if config.checkpoint is None:
                trainer.validate(task, datamodule=parts.data, verbose=False)
            trainer.fit(task, datamodule=parts.data, ckpt_path=config.checkpoint)
            if config.checkpoint is not None and checkpoints is not None and not checkpoints.saved:
                on_note(
                    f"nothing to train: the checkpoint is at step {trainer.global_step}, and the limit is step "
                    f"{trainer.max_steps}"
                )
                copy_whole(Path(config.checkpoint), checkpoints.last)
            if measure.step != trainer.global_step or dev:
                trainer.validate(task, datamodule=parts.data, verbose=False)
            trainer.test(task, datamodule=parts.data, verbose=False)
            if metrics_file is not None:
                _record_findings(config, folder, trainer, parts, measure, metrics_file, logger, name)
        record.metrics = {} if metrics_file is None else dict(metrics_file.last)
        record.write("dev" if dev else "finished")
    except Interrupted as error:
        record.write("interrupted", error=str(error))
        raise
    except BaseException as error:
        record.fail(error)
        raise
    return record.metrics


def _record_findings(
    config: TrainConfig,
    folder: Path,
    trainer: pl.Trainer,
    parts: Parts,
    measure: Measure,
    metrics_file: tracking.MetricsFile,
    logger: tracking.RunLogger | None,
    name: str,
) -> None:
    """The tables of the last evaluation into the folder; the figures from them to the logger."""
    assert measure.comparison is not None
    with trainer.precision_plugin.forward_context():  # as it was trained
        found = findings.collect(
            parts.model,
            parts.truth,
            measure.comparison,
            measure.samples,
            evaluation=config.evaluation,
            generation=config.generation,
        )
    tables.write(folder, found)
    if logger is not None:
        curves = tables.read(folder, "metrics")
        assert curves is not None
        drawn = tracking.pictures(
            found,
            curves,
            tables.sampled(metrics_file.last, config.generation.temperatures),
            setting=name,
            seed=config.seed,
        )
        tracking.log_result(logger, found, drawn)


def build_trainer(
    config: TrainConfig,
    folder: Path | None,
    loggers: Sequence[Any],
    callbacks: Sequence[Callback],
    *,
    max_steps: int | None = None,
) -> pl.Trainer:
    """Lightning's Trainer with what this project never uses switched off: each costs time at every step.

    It counts steps alone: its own count of epochs is off after a checkpoint at the end of one.
    """
    trainer = config.trainer
    return pl.Trainer(
        accelerator=trainer.accelerator.value,
        devices=1,
        precision=trainer.precision,  # type: ignore[arg-type]  # checked against Lightning's list
        max_steps=trainer.max_steps if max_steps is None else max_steps,
        max_epochs=-1,
        val_check_interval=trainer.val_check_interval,
        check_val_every_n_epoch=None,
        log_every_n_steps=0,  # the task logs by itself
        gradient_clip_val=trainer.gradient_clip_val,
        fast_dev_run=trainer.fast_dev_run,
        num_sanity_val_steps=0,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
        use_distributed_sampler=False,
        profiler=_NoProfiler(),
        default_root_dir=folder,
        logger=list(loggers) or False,
        callbacks=list(callbacks),
    )


class _NoProfiler(PassThroughProfiler):
    """Lightning opens a profiler's context sixty times a step: one that is empty and made once."""

    _nothing: AbstractContextManager[None] = nullcontext()

    def profile(self, action_name: str) -> AbstractContextManager[None]:  # type: ignore[override]
        return self._nothing


def _check_device(config: TrainConfig) -> None:
    if config.trainer.accelerator == Accelerator.cuda and not torch.cuda.is_available():
        raise ConfigError("trainer.accelerator=cuda: torch sees no such device here; cpu is the other choice")
    if config.trainer.precision.startswith("transformer-engine"):
        try:
            build_trainer(config, None, [], [])
        except (ImportError, MisconfigurationException) as error:
            raise ConfigError(f"trainer.precision={config.trainer.precision}: {error}".splitlines()[0]) from None


def _max_steps(config: TrainConfig) -> int:
    """Whichever of the two limits is met first."""
    trainer, data = config.trainer, config.data
    if trainer.max_epochs is None:
        return trainer.max_steps
    assert data.train_size is not None  # the configuration sees to it
    return min(trainer.max_steps, trainer.max_epochs * math.ceil(data.train_size / data.batch_size))


def _measure(config: TrainConfig, parts: Parts, seed: int) -> Measure:
    return Measure(parts.truth, config.evaluation, config.generation, seed=seed, holdout=parts.data.holdout or ())


def _all_measures(config: TrainConfig, parts: Parts) -> list[str]:
    return [
        *TRAIN,
        *split_measures("val"),
        *measure_names(config.generation.temperatures, exact=parts.truth.exact, holdout=parts.data.holdout is not None),
        *split_measures("test"),
    ]


@contextmanager
def _metrics_file(path: Path | None, measures: Sequence[str]) -> Iterator[tracking.MetricsFile | None]:
    if path is None:
        yield None
        return
    file = tracking.MetricsFile(path, measures)
    try:
        yield file
    finally:
        file.close()


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Without what the libraries say that a user can do nothing about."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        for message in _NOISE:
            warnings.filterwarnings("ignore", message=message)
        for logger in loggers:
            logger.setLevel(logging.WARNING)  # below it: what hardware there is not, and advertisements
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


# ---- after training ------------------------------------------------------------------------------------------------


def evaluate(config: EvaluateConfig) -> tuple[TrainConfig, dict[str, float]]:
    """The measures of a checkpoint, by the same code and on the same sentences as at the end of its own run.

    On the CPU where there is no other device, whatever it was trained on.
    """
    torch.set_num_threads(config.torch_threads)
    saved, weights = load_checkpoint(config.checkpoint)
    cpu = saved.trainer.accelerator == Accelerator.cpu or not torch.cuda.is_available()
    precision = "32-true" if cpu and saved.trainer.precision == "16-mixed" else saved.trainer.precision
    try:
        trained = dataclasses.replace(
            saved,
            data=dataclasses.replace(saved.data, batch_size=config.batch_size or saved.data.batch_size),
            evaluation=dataclasses.replace(
                saved.evaluation, batch_size=config.batch_size or saved.evaluation.batch_size
            ),
            generation=dataclasses.replace(
                saved.generation,
                temperatures=saved.generation.temperatures if config.temperatures is None else config.temperatures,
                samples=config.samples or saved.generation.samples,
            ),
            trainer=dataclasses.replace(
                saved.trainer,
                accelerator=Accelerator.cpu if cpu else saved.trainer.accelerator,
                precision=precision,
                fast_dev_run=False,
            ),
        )
    except ConfigError as error:
        raise ConfigError(str(error).replace("generation.", "")) from None  # as this command calls them
    parts = build_parts(trained)
    restore(parts.model, weights)
    task = DecoderTask(parts.model, trained.optimizer, log_every_n_steps=trained.trainer.log_every_n_steps)
    measure = _measure(trained, parts, trained.seed if config.seed is None else config.seed)
    with quiet_libraries():
        trainer = build_trainer(trained, None, [], [measure])
        metrics: dict[str, float] = {}
        for stage in (trainer.validate, trainer.test):
            stage(task, datamodule=parts.data, verbose=False)
            metrics |= {name: float(value) for name, value in trainer.callback_metrics.items() if name != "step"}
    return trained, metrics
