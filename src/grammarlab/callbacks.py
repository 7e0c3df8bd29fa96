"""When a run measures, saves and stops. None of it changes what is trained."""

from __future__ import annotations

import math
import os
import shutil
import signal
import threading
from collections.abc import Container, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.trainer.states import TrainerFn
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from grammarlab.config import EvaluationConfig, GenerationConfig
from grammarlab.evaluation import (
    Comparison,
    Sample,
    Truth,
    compare_with_truth,
    draw_samples,
    estimate_validity,
    measure_samples,
)
from grammarlab.generation import How, Sampling
from grammarlab.language import Sentence
from grammarlab.task import DecoderTask


class Measure(Callback):
    """At each validation, the model against the language: logs every `truth/…` and `sampled/…` measure.

    Randomness comes from its own streams. `comparison`, `samples` and `step` are those of the last time.
    """

    def __init__(
        self,
        truth: Truth,
        evaluation: EvaluationConfig,
        generation: GenerationConfig,
        *,
        seed: int,
        holdout: Container[Sentence] = (),
    ) -> None:
        self.truth, self.evaluation, self.generation = truth, evaluation, generation
        self.seed, self.holdout = seed, holdout
        self.step: int | None = None
        self.comparison: Comparison | None = None
        self.samples: list[Sample] = []

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, DecoderTask)
        # As the trainer runs the model: under autocast q would else be another than the one whose loss is logged.
        with trainer.precision_plugin.forward_context():
            measures = self._measures(pl_module)
        self.step = trainer.global_step
        for name, value in measures.items():
            pl_module.log(name, torch.tensor(value, dtype=torch.float64))

    def _measures(self, pl_module: DecoderTask) -> dict[str, float]:
        generation, batch_size = self.generation, self.evaluation.batch_size
        self.comparison = compare_with_truth(
            pl_module.model,
            self.truth,
            temperatures=generation.temperatures,
            draws=generation.draws,
            batch_size=batch_size,
            holdout=self.holdout,
        )
        measures = dict(self.comparison.measures)
        self.samples = []
        for temperature in generation.temperatures:
            samples = draw_samples(
                pl_module.model,
                self.truth.language,
                self.truth.vocabulary,
                [()] * generation.samples,
                how=How(sampling=Sampling(temperature=temperature), seed=self.seed),
                batch_size=batch_size,
            )
            size = len(self.truth.sentences) if self.truth.exact else None
            measures |= measure_samples(samples, language_size=size, draws=generation.draws)
            if not self.truth.exact:
                measures |= estimate_validity(samples)
            self.samples += samples[: generation.recorded]
        return measures


class Checkpoints(Callback):
    """`last.ckpt` every few steps and at the end, `best.ckpt` at the lowest val/loss of this run.

    Lightning writes each file under another name first, so that a kill leaves the old one whole.
    """

    def __init__(self, folder: Path, interval: int) -> None:
        self.last, self.best = folder / "last.ckpt", folder / "best.ckpt"
        self.interval = interval
        self._saved_step: int | None = None
        self._best_loss = math.inf

    @property
    def saved(self) -> bool:
        """Whether `last.ckpt` has been written."""
        return self._saved_step is not None

    def save_last(self, trainer: pl.Trainer) -> None:
        if self._saved_step != trainer.global_step:
            trainer.save_checkpoint(self.last)
            self._saved_step = trainer.global_step

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step % self.interval == 0:
            self.save_last(trainer)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.save_last(trainer)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        loss = float(trainer.callback_metrics["val/loss"])
        if loss >= self._best_loss:
            return
        if trainer.state.fn == TrainerFn.FITTING:
            trainer.save_checkpoint(self.best)
        elif self._saved_step == trainer.global_step:  # the validation after the fit
            copy_whole(self.last, self.best)
        else:
            return  # before the first step there is nothing to keep
        self._best_loss = loss


def copy_whole(source: Path, target: Path) -> None:
    """Under another name first: a kill leaves no half file."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_suffix(".tmp")
    shutil.copyfile(source, temporary)
    os.replace(temporary, target)


class ProgressBar(Callback):
    """The steps of the whole run, with the loss beside them. Lightning's own bar shows one epoch at a time."""

    def __init__(self) -> None:
        self._bar = Progress(
            TextColumn("step"),
            MofNCompleteColumn(),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[loss]}"),
            transient=True,  # the table at the end says more
        )
        self._task = self._bar.add_task("train", loss="")

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._bar.update(self._task, total=trainer.max_steps, completed=trainer.global_step)
        self._bar.start()

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step % 10 == 0:
            assert isinstance(pl_module, DecoderTask)
            loss = "" if pl_module.last_loss is None else f"loss {pl_module.last_loss:.4f}"
            self._bar.update(self._task, completed=trainer.global_step, loss=loss)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._bar.stop()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._bar.stop()


class Interrupted(BaseException):
    """The run was told to stop by a signal."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.exit_status = 128 + signum


class StopOnSignal(Callback):
    """SIGTERM and SIGINT end a fit after the step or the validation in hand, with a checkpoint; a second one at once.

    Lightning alone would end with status 0 on SIGTERM, and drop the jobs of a sweep that were still to come.
    """

    def __init__(self, checkpoints: Checkpoints | None) -> None:
        self._checkpoints = checkpoints
        self._fitting = self._listening = False
        self._pending: int | None = None

    @contextmanager
    def listening(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield  # only the main thread may set handlers
            return
        before = {signum: signal.signal(signum, self._receive) for signum in (signal.SIGTERM, signal.SIGINT)}
        self._listening = True
        try:
            yield
        finally:
            self._listening = False
            for signum, handler in before.items():
                signal.signal(signum, handler)

    def _receive(self, signum: int, frame: FrameType | None) -> None:
        if not self._fitting or self._pending is not None:
            raise Interrupted(signum)
        self._pending = signum

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._fitting = True
        # Lightning has put a handler of its own before this one, which would end the fit at its next look, unsaved.
        if self._listening:
            signal.signal(signal.SIGTERM, self._receive)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._obey(trainer)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._fitting:
            self._obey(trainer)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._fitting = False
        self._obey(trainer)

    def _obey(self, trainer: pl.Trainer) -> None:
        if self._pending is not None:
            if self._checkpoints is not None:
                self._checkpoints.save_last(trainer)
            raise Interrupted(self._pending)
