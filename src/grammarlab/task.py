"""What is trained and how: loss, optimizer, schedule, and what training logs. Knows neither data nor grammar."""

from __future__ import annotations

import inspect
import math
import time
from typing import Any

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn

from grammarlab.config import OptimizerConfig, OptimizerName, Schedule
from grammarlab.evaluation import ExcessLoss, inputs_and_targets, sentence_losses
from grammarlab.model import Decoder


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
    """Weight decay on the matrices of linear maps alone; none on biases, norms and embeddings (nor on a tied head).

    One group if there is no decay: the optimizer pays for each.
    """
    if weight_decay == 0:
        return [{"params": list(model.parameters()), "weight_decay": 0.0}]
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
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
        self._recent: list[tuple[Tensor, Tensor]] = []  # loss and number of tokens of each step since the last log
        self._random_state: dict[str, Any] | None = None
        self._clock = self._paused = 0.0
        self._untimed = 0  # tokens since the last log that an earlier process trained on
        self.last_loss: float | None = None  # as last logged, for a progress bar
        if hyperparameters is not None:
            self.save_hyperparameters(hyperparameters, logger=False)

    def __setattr__(self, name: str, value: Any) -> None:
        # Lightning notes the hook it is in, on the module, dozens of times a step; torch's way would ask each time
        # whether that is a parameter.
        if name == "_current_fx_name":
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    # ---- training ----

    def training_step(self, rows: Tensor, batch_index: int) -> Tensor:
        inputs, targets = inputs_and_targets(rows, self.model)
        logits = self.model(inputs)
        # Every row predicts at least its end, so there is always a target.
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=self.model.pad_id)
        tokens = (targets != self.model.pad_id).sum()
        self._recent.append((loss.detach(), tokens))  # added up when logged: reading them now would wait for them
        return loss

    def on_train_start(self) -> None:
        if self._random_state is not None:
            torch.set_rng_state(self._random_state["cpu"].cpu())
            if self._random_state["cuda"]:
                torch.cuda.set_rng_state_all([state.cpu() for state in self._random_state["cuda"]])
        self._clock = time.perf_counter()

    def on_validation_start(self) -> None:
        self._paused = time.perf_counter()

    def on_validation_end(self) -> None:
        self._clock += time.perf_counter() - self._paused  # the time that validation took is no time of training

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Log, every few steps, what is known before the update: the norm is the gradient's before clipping.

        Straight to the loggers: `self.log` would cost a fifth of a step of a small model.
        """
        step = self.global_step + 1
        if step % self.log_every_n_steps and step != self.last_step:
            return
        loss_sum, tokens = self._sums()
        loss = loss_sum / tokens
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
            "train/tokens_per_second": (tokens - self._untimed) / (time.perf_counter() - self._clock),
        }
        for logger in self.loggers:
            logger.log_metrics(values, step=step)
        self.last_loss = loss
        self._recent.clear()
        self._untimed = 0
        self._clock = time.perf_counter()

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: int | float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        if gradient_clip_val is not None:  # Lightning would look through its settings at every step
            self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)

    def configure_optimizers(self) -> OptimizerLRScheduler:
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
        if config.schedule == Schedule.constant and config.warmup_steps == 0:
            return {"optimizer": optimizer}
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: learning_rate_factor(step, config, self.last_step)
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Lightning keeps neither the random state, without which dropout differs, nor what is not logged yet."""
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
        checkpoint["random_state"] = {"cpu": torch.get_rng_state(), "cuda": cuda}
        checkpoint["unlogged"] = [(float(loss), int(tokens)) for loss, tokens in self._recent]

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self._random_state = checkpoint["random_state"]
        self._recent = [(torch.tensor(loss), torch.tensor(tokens)) for loss, tokens in checkpoint["unlogged"]]
        self._untimed = sum(tokens for _, tokens in checkpoint["unlogged"])

    def _sums(self) -> tuple[float, int]:
        """Σ −log q and number of the tokens trained on since the last log."""
        tokens = [int(tokens) for _, tokens in self._recent]
        return math.fsum(float(loss) * n for (loss, _), n in zip(self._recent, tokens, strict=True)), sum(tokens)

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
        inputs, targets = inputs_and_targets(rows, self.model)
        losses, tokens = sentence_losses(self.model(inputs), targets, self.model.pad_id)
        metric.update(losses, -log_probs, tokens)

    def _report(self, stage: str, metric: ExcessLoss) -> None:
        for name, value in metric.compute().items():
            self.log(f"{stage}/{name}", value)
        # Lightning takes this name for the step to log at; its own count is one behind within a fit.
        self.log("step", torch.tensor(self.global_step, dtype=torch.float64))
        metric.reset()


# Lightning reads it at every step, and without it Python derives it anew each time.
DecoderTask.training_step.__signature__ = inspect.signature(DecoderTask.training_step)  # type: ignore[attr-defined]
