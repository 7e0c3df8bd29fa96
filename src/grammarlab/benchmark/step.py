"""A training step of the default run against a bare torch loop."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import Callback

from grammarlab.callbacks import Checkpoints, Measure, StopOnSignal
from grammarlab.config import BenchmarkConfig, TrainConfig
from grammarlab.data import FreshBatches, ShuffledBatches
from grammarlab.measures import TRAIN
from grammarlab.parts import Parts, build_parts, library_language
from grammarlab.run import build_trainer, quiet_libraries
from grammarlab.task import DecoderTask
from grammarlab.tracking import MetricsFile


def step_cases(config: BenchmarkConfig) -> list[dict[str, Any]]:
    """A training step of the default run against a bare torch loop on the same model, batches and optimizer.

    With all that a run with logger=csv has, between its validations and checkpoints.

    The two take steps in turn, so that a busy machine slows both alike; the ratio is that of the sums over each block
    of `steps` steps. Both read the loss every `log_every_n_steps`. The weights that come out must be equal to
    the last bit.
    """
    settings = TrainConfig(language=library_language("captions"))
    settings.trainer.max_steps = config.steps * (config.repeats + 1)  # a block to warm up
    settings.trainer.val_check_interval = settings.trainer.max_steps + 1  # training alone is timed
    peer = build_parts(settings)
    parts = build_parts(settings)
    task = DecoderTask(parts.model, settings.optimizer, log_every_n_steps=settings.trainer.log_every_n_steps)
    pairs = _StepPairs(_bare_loop(peer, settings))
    with quiet_libraries(), tempfile.TemporaryDirectory() as folder:
        metrics = MetricsFile(Path(folder) / "metrics.csv", TRAIN)
        checkpoints = Checkpoints(Path(folder), settings.trainer.max_steps + 1)
        measure = Measure(parts.truth, settings.evaluation, settings.generation, seed=settings.seed)
        callbacks = [measure, checkpoints, StopOnSignal(checkpoints), pairs]
        build_trainer(settings, None, [metrics], callbacks).fit(task, datamodule=parts.data)
        metrics.close()
    blocks = [
        (sum(pairs.ours[start : start + config.steps]), sum(pairs.peer[start : start + config.steps]))
        for start in range(config.steps, settings.trainer.max_steps, config.steps)
    ]
    ratios = sorted(ours / theirs for ours, theirs in blocks)
    return [
        {
            "case": "step of the default run / of a bare torch loop",
            "ours_seconds": median(ours for ours, _ in blocks) / config.steps,
            "peer": "torch",
            "peer_seconds": median(theirs for _, theirs in blocks) / config.steps,
            "ratio": median(ratios),
            "spread": [ratios[0], ratios[-1]],
            "equal": torch.equal(_flat(parts.model), _flat(peer.model)),
        }
    ]


def _bare_loop(parts: Parts, settings: TrainConfig) -> Iterator[None]:
    """A step at each `next`."""
    model = parts.model
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.optimizer.learning_rate, fused=True)
    for step, rows in enumerate(_endless(parts.data.train_dataloader()), start=1):
        optimizer.zero_grad()
        logits = model(rows[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten(), ignore_index=model.pad_id)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if step % settings.trainer.log_every_n_steps == 0:
            loss.item()
        yield


class _StepPairs(Callback):
    """After each step of the trainer one of the peer. All that happens between two steps is the trainer's time."""

    def __init__(self, peer: Iterator[None]) -> None:
        self._peer = peer
        self._resumed = time.perf_counter()
        self.ours: list[float] = []
        self.peer: list[float] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        start = time.perf_counter()
        self.ours.append(start - self._resumed)
        next(self._peer)
        self._resumed = time.perf_counter()
        self.peer.append(self._resumed - start)


def _endless(batches: ShuffledBatches | FreshBatches) -> Iterator[torch.Tensor]:
    while True:
        yield from batches


def _flat(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
