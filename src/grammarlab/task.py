"""What is trained and how: loss, optimizer, schedule, and what training logs. Knows neither data nor grammar."""

from __future__ import annotations

import math
import time
from typing import Any

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from grammarlab.config import OptimizerConfig, OptimizerName, Schedule
from grammarlab.evaluation import ExcessLoss, sentence_losses
from grammarlab.model import Decoder

TRAIN_MEASURES = ("train/loss", "train/gradient_norm", "train/learning_rate", "train/tokens_per_second")


class DivergedError(RuntimeError):
    """Training gave a loss that is not finite."""


def learning_rate_factor(step: int, config: OptimizerConfig, max_steps: int) -> float:
    """Share of the peak learning rate at update `step`, counted from 0.

    Linear warm-up that reaches the peak at step `warmup_steps`; then constant, or half a cosine down to
    `final_fraction` at the last step, `max_steps` − 1, where it stays.
    """
    if step < config.warmup_steps:
        return (step + 1) / (config.warmup_steps + 1)
    if config.schedule == Schedule.constant:
        return 1.0
    progress = min(1.0, (step - config.warmup_steps) / max(1, max_steps - 1 - config.warmup_steps))
    return config.final_fraction + (1 - config.final_fraction) * 0.5 * (1 + math.cos(math.pi * progress))


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Weight decay on the matrices of linear maps alone; none on biases, norms and embeddings (nor on a tied head)."""
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    matrices, others = [], []
    for parameter in model.parameters():  # each tensor once, tied or not
        decays = parameter.ndim >= 2 and id(parameter) not in embeddings
        (matrices if decays else others).append(parameter)
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


class DecoderTask(pl.LightningModule):
    """A decoder trained to predict the next token.

    Batches are (B, T + 1) rows of ids, padded on the right; those for validation and test carry each row's
    log-probability under the language. `hyperparameters`: plain containers that go into the checkpoint.
    """

    def __init__(
        self,
        model: Decoder,
        optimizer: OptimizerConfig,
        *,
        log_every_n_steps: int,
        hyperparameters: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.optimizer_config = optimizer
        self.log_every_n_steps = log_every_n_steps
        self.last_step = 0  # the update that ends the fit, known when it begins
        self.validation = ExcessLoss()
        self.test = ExcessLoss()
        self._set_sums(0.0, 0.0)
        self._clock: float | None = None
        if hyperparameters is not None:
            self.save_hyperparameters(hyperparameters, logger=False)

    # ---- training ----

    def training_step(self, rows: Tensor, batch_index: int) -> Tensor:
        targets = rows[:, 1:]
        logits = self.model(rows[:, :-1])
        # Every row predicts at least its end, so there is always a target.
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=self.model.pad_id)
        tokens = (targets != self.model.pad_id).sum()
        self._loss_sum = self._loss_sum + loss.detach() * tokens  # on the loss's device: reading it would wait for it
        self._token_sum = self._token_sum + tokens
        return loss

    def on_train_start(self) -> None:
        self._clock = time.perf_counter()

    def on_validation_end(self) -> None:
        self._clock = None  # the time that validation took is no time of training

    def on_train_batch_start(self, batch: Tensor, batch_idx: int) -> None:
        if self._clock is None:
            self._clock = time.perf_counter()

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Log, every few steps, what is known before the update: the norm is the gradient's before clipping."""
        step = self.global_step + 1
        if step % self.log_every_n_steps and step != self.last_step:
            return
        loss = float(self._loss_sum / self._token_sum)
        if not math.isfinite(loss):
            raise DivergedError(
                f"the loss is {loss} at step {step}: training has diverged; a smaller optimizer.learning_rate or "
                "trainer.gradient_clip_val may help"
            )
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        values = {
            "train/loss": loss,
            "train/gradient_norm": float(nn.utils.get_total_norm(gradients)),
            "train/learning_rate": optimizer.param_groups[0]["lr"],
        }
        if self._clock is not None:
            values["train/tokens_per_second"] = float(self._token_sum) / (time.perf_counter() - self._clock)
        for logger in self.loggers:
            logger.log_metrics(values, step=step)
        self.log("loss", loss, prog_bar=True, logger=False)
        self._set_sums(0.0, 0.0)
        self._clock = time.perf_counter()

    def configure_optimizers(self) -> dict[str, Any]:
        config = self.optimizer_config
        self.last_step = int(self.trainer.estimated_stepping_batches)
        kind = torch.optim.AdamW if config.name == OptimizerName.adamw else torch.optim.Adam
        optimizer = kind(
            parameter_groups(self.model, config.weight_decay),
            lr=config.learning_rate,
            betas=(config.betas[0], config.betas[1]),
            eps=config.epsilon,
            # Fused is a fifth faster a step, but under a gradient scaler Lightning refuses to clip with it.
            fused=self.trainer.precision != "16-mixed",
        )
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: learning_rate_factor(step, config, self.last_step)
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["train_sums"] = [float(self._loss_sum), float(self._token_sum)]

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self._set_sums(*checkpoint["train_sums"])

    def _set_sums(self, loss: float, tokens: float) -> None:
        """Σ −log q and number of the tokens trained on since the last log: the loss logged is over all of them."""
        self._loss_sum = torch.tensor(loss, dtype=torch.float64)
        self._token_sum = torch.tensor(tokens, dtype=torch.float64)

    # ---- validation and test ----

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_index: int) -> None:
        self._score(self.validation, batch)

    def test_step(self, batch: tuple[Tensor, Tensor], batch_index: int) -> None:
        self._score(self.test, batch)

    def on_validation_epoch_end(self) -> None:
        self._report("val", self.validation)

    def on_test_epoch_end(self) -> None:
        self._report("test", self.test)

    def _score(self, metric: ExcessLoss, batch: tuple[Tensor, Tensor]) -> None:
        rows, log_probs = batch
        losses, tokens = sentence_losses(self.model(rows[:, :-1]), rows[:, 1:], self.model.pad_id)
        metric.update(losses, -log_probs, tokens)

    def _report(self, stage: str, metric: ExcessLoss) -> None:
        for name, value in metric.compute().items():
            self.log(f"{stage}/{name}", value)
        metric.reset()


def split_measures(stage: str) -> list[str]:
    """The names under which a `DecoderTask` logs the `val` or `test` split."""
    return [f"{stage}/{name}" for name in ("loss", "floor", "excess_loss", "leakage")]
