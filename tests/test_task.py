"""Training: the loss and its gradient, what decays, the learning rate by step, and what is logged."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import Logger
from torch import Tensor, nn

from grammarlab.config import (
    DataConfig,
    LanguageConfig,
    ModelConfig,
    NormOrder,
    OptimizerConfig,
    OptimizerName,
    Positions,
    Schedule,
    TrainConfig,
    TrainerConfig,
)
from grammarlab.language import Sentence, from_text
from grammarlab.measures import TRAIN, split_measures
from grammarlab.model import Decoder
from grammarlab.parts import Parts, build_parts
from grammarlab.run import build_trainer, quiet_libraries
from grammarlab.task import (
    DecoderTask,
    DivergedError,
    learning_rate_factor,
    parameter_groups,
)
from grammarlab.vocabulary import Vocabulary

GRAMMAR = "S -> 'a' [0.4] | 'a' 'b' 'c' [0.3] | 'b' 'c' 'a' 'a' 'b' [0.2] | [0.1]"
VOCABULARY = Vocabulary(("a", "b", "c"))
SENTENCES: list[Sentence] = [
    ("a",),
    ("b", "c", "a", "a", "b"),
    (),
    ("a", "b", "c"),
    ("a",),
    ("a", "b", "c"),
    ("b", "c", "a", "a", "b"),
]


def decoder(seed: int = 0, **options: Any) -> Decoder:
    torch.manual_seed(seed)
    sizes: dict[str, Any] = {"width": 10, "heads": 5, "depth": 2, "context": 7, "feedforward_multiple": 3}
    return Decoder(
        ModelConfig(**(sizes | options)),
        vocabulary_size=len(VOCABULARY),
        pad_id=VOCABULARY.pad_id,
        never_generated=(VOCABULARY.pad_id, VOCABULARY.begin_id),
    )


def encoded(sentences: list[Sentence]) -> Tensor:
    return torch.from_numpy(VOCABULARY.encode(sentences))


# ---- the learning rate -------------------------------------------------------------------------------------

COSINE = OptimizerConfig(schedule=Schedule.cosine, warmup_steps=5, final_fraction=0.1)


def factors(config: OptimizerConfig, steps: int = 20) -> list[float]:
    return [learning_rate_factor(step, config, steps) for step in range(steps)]


@pytest.mark.parametrize("final_fraction", [0.0, 0.1, 0.5])
def test_the_rate_rises_to_the_peak_after_the_warmup_and_falls_to_the_final_fraction(
    final_fraction: float,
) -> None:
    config = OptimizerConfig(schedule=Schedule.cosine, warmup_steps=5, final_fraction=final_fraction)
    rates = factors(config)
    steps = [after - before for before, after in itertools.pairwise(rates)]
    assert all(step > 0 for step in steps[:5])
    assert all(step < 0 for step in steps[5:])
    assert rates[0] > 0
    assert rates[5] == 1
    assert rates[19] == pytest.approx(final_fraction, abs=1e-15)


def test_the_warmup_is_a_straight_line() -> None:
    assert factors(COSINE)[:6] == pytest.approx([1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6, 1], abs=1e-15)


def test_the_fall_is_half_a_cosine() -> None:
    # 12 steps from the peak to the last: at 60°, 90° and 120° the cosine is ½, 0 and −½.
    config = OptimizerConfig(schedule=Schedule.cosine, final_fraction=0.2)
    rates = factors(config, steps=13)
    known = [rates[step] for step in (0, 4, 6, 8, 12)]
    assert known == pytest.approx([1, 0.8, 0.6, 0.4, 0.2], abs=1e-15)


def test_after_the_last_step_the_rate_stays() -> None:
    assert [learning_rate_factor(step, COSINE, 20) for step in (20, 21, 1_000)] == pytest.approx([0.1] * 3)


@pytest.mark.parametrize("warmup_steps", [0, 5])
def test_a_constant_rate_is_at_the_peak_from_the_end_of_the_warmup(warmup_steps: int) -> None:
    rates = factors(OptimizerConfig(warmup_steps=warmup_steps))
    assert rates[warmup_steps:] == [1.0] * (20 - warmup_steps)
    assert all(before < after for before, after in itertools.pairwise(rates[: warmup_steps + 1]))


# ---- what decays -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("norm_order", list(NormOrder))
@pytest.mark.parametrize("positions", list(Positions))
def test_matrices_alone_decay_and_every_parameter_is_in_one_group(
    positions: Positions, norm_order: NormOrder, tied: bool
) -> None:
    model = decoder(positions=positions, norm_order=norm_order, tied_embeddings=tied)
    groups = parameter_groups(model, 0.3)
    decays = [(id(p), group["weight_decay"]) for group in groups for p in group["params"]]
    assert len(dict(decays)) == len(decays) == len(list(model.parameters()))
    count = sum(p.numel() for group in groups for p in group["params"])
    assert count == sum(p.numel() for p in model.parameters())
    matrices = {"qkv.weight", "out.weight", "up.weight", "down.weight"} | (set() if tied else {"head.weight"})
    for name, parameter in model.named_parameters():
        expected = 0.3 if name.endswith(tuple(matrices)) else 0.0
        assert dict(decays)[id(parameter)] == expected, name


@pytest.mark.parametrize("tied", [False, True])
def test_without_decay_every_parameter_is_in_one_group_too(tied: bool) -> None:
    model = decoder(tied_embeddings=tied)
    groups = parameter_groups(model, 0.0)
    assert [group["weight_decay"] for group in groups] == [0.0]
    assert {id(p) for p in groups[0]["params"]} == {id(p) for p in model.parameters()}
    assert len(groups[0]["params"]) == len(list(model.parameters()))


def test_no_group_is_empty() -> None:
    (group,) = parameter_groups(nn.LayerNorm(7), 0.3)
    assert group["weight_decay"] == 0
    (group,) = parameter_groups(nn.Linear(7, 5, bias=False), 0.3)
    assert group["weight_decay"] == 0.3


# ---- the loss and its gradient -----------------------------------------------------------------------------

# A model that is not causal must not see the end token of a row that is shorter than its batch mates.
CAUSAL_OR_NOT = [True, False]


def training_loss(model: Decoder, rows: Tensor) -> Tensor:
    return DecoderTask(model, OptimizerConfig(), log_every_n_steps=1).training_step(rows, 0)


def direct_loss(model: Decoder, rows: Tensor) -> tuple[Tensor, int]:
    """Σ −log q and number of predicted tokens, sentence by sentence, without any padding."""
    total, tokens = torch.zeros(()), 0
    for row in rows:
        ids = row[row != VOCABULARY.pad_id]
        for logits, target in zip(model(ids[None, :-1])[0], ids[1:], strict=True):
            total = total + logits.exp().sum().log() - logits[target]
            tokens += 1
    return total, tokens


def gradients(model: Decoder, loss: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters())))


@pytest.mark.parametrize("causal", CAUSAL_OR_NOT)
def test_the_training_loss_is_the_mean_over_predicted_tokens(causal: bool) -> None:
    model, rows = decoder(causal=causal).double(), encoded(SENTENCES)
    total, tokens = direct_loss(model, rows)
    assert tokens == sum(len(sentence) + 1 for sentence in SENTENCES)
    loss = training_loss(model, rows)
    torch.testing.assert_close(loss, total / tokens, rtol=0, atol=1e-12)
    for fast, slow in zip(gradients(model, loss), gradients(model, total / tokens), strict=True):
        torch.testing.assert_close(fast, slow, rtol=0, atol=1e-12)


@pytest.mark.parametrize("causal", CAUSAL_OR_NOT)
@pytest.mark.parametrize("cuts", [(1, 2), (2, 6), (1, 2, 3, 4, 5, 6)])
def test_split_batches_weighted_by_their_tokens_are_one_batch(cuts: tuple[int, ...], causal: bool) -> None:
    model = decoder(causal=causal).double()
    whole = training_loss(model, encoded(SENTENCES))
    all_tokens = sum(len(sentence) + 1 for sentence in SENTENCES)
    split = torch.zeros(())
    for start, stop in itertools.pairwise((0, *cuts, len(SENTENCES))):
        part = SENTENCES[start:stop]
        tokens = sum(len(sentence) + 1 for sentence in part)
        split = split + training_loss(model, encoded(part)) * tokens / all_tokens
    torch.testing.assert_close(split, whole, rtol=0, atol=1e-12)
    for one, several in zip(gradients(model, whole), gradients(model, split), strict=True):
        torch.testing.assert_close(one, several, rtol=0, atol=1e-12)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("causal", CAUSAL_OR_NOT)
def test_padding_changes_neither_loss_nor_gradient(causal: bool, tied: bool) -> None:
    model = decoder(causal=causal, tied_embeddings=tied).double()
    rows = encoded(SENTENCES[:1] + SENTENCES[2:6])
    padded = nn.functional.pad(rows, (0, 3), value=VOCABULARY.pad_id)
    loss, padded_loss = training_loss(model, rows), training_loss(model, padded)
    torch.testing.assert_close(padded_loss, loss, rtol=0, atol=1e-12)
    for short, long in zip(gradients(model, loss), gradients(model, padded_loss), strict=True):
        torch.testing.assert_close(long, short, rtol=0, atol=1e-12)
    (gradient,) = torch.autograd.grad(training_loss(model, padded), [model.token_embedding.weight])
    assert (gradient[VOCABULARY.pad_id] == 0).all()
    assert (gradient[VOCABULARY.begin_id] != 0).any()


def test_sentences_without_a_word_still_have_an_end_to_predict() -> None:
    model = decoder().double()
    loss = training_loss(model, encoded([(), ()]))
    logits = model(torch.tensor([[VOCABULARY.begin_id]]))[0, 0]
    expected = -logits.softmax(0)[VOCABULARY.end_id].log()
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-12)


# ---- a real fit --------------------------------------------------------------------------------------------


class Recorder(Logger):
    """Keeps what is logged."""

    name = version = None

    def __init__(self) -> None:
        super().__init__()
        self.logged: dict[int, dict[str, float]] = {}

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        assert step is not None
        self.logged.setdefault(step, {}).update(metrics)

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        pass


class Watch(Callback):
    """Computes anew, at each update, what the task should log about it."""

    def __init__(self) -> None:
        self.losses: list[tuple[float, int]] = []  # Σ −log q and number of tokens
        self.norms: list[float] = []
        self.rates: list[float] = []

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Tensor, batch_idx: int
    ) -> None:
        with torch.no_grad():
            total, tokens = direct_loss(pl_module.model, batch)
        self.losses.append((float(total), tokens))

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        squares = [float((p.grad.double() ** 2).sum()) for p in pl_module.parameters()]
        self.norms.append(math.sqrt(math.fsum(squares)))
        self.rates.append(optimizer.param_groups[0]["lr"])


def run_config(**changes: Any) -> TrainConfig:
    parts: dict[str, Any] = {
        "language": LanguageConfig(grammar=GRAMMAR),
        "data": DataConfig(train_size=23, batch_size=5, validation_size=53, test_size=2),
        "model": ModelConfig(width=10, heads=5, context=7),
        "trainer": TrainerConfig(max_steps=20, val_check_interval=1_000, precision="64-true"),
    }
    return TrainConfig(**(parts | changes))


def fit(
    config: TrainConfig, folder: Path, parts: Parts | None = None, *, log_every_n_steps: int = 1
) -> tuple[Decoder, Recorder, Watch]:
    parts = parts or build_parts(config)
    task = DecoderTask(parts.model, config.optimizer, log_every_n_steps=log_every_n_steps)
    recorder, watch = Recorder(), Watch()
    with quiet_libraries():
        build_trainer(config, folder, [recorder], [watch]).fit(task, datamodule=parts.data)
    return parts.model, recorder, watch


def test_a_fit_takes_every_update_at_its_rate(tmp_path: Path) -> None:
    optimizer = OptimizerConfig(
        learning_rate=0.01,
        schedule=Schedule.cosine,
        warmup_steps=5,
        final_fraction=0.1,
        name=OptimizerName.adamw,
    )
    _, recorder, watch = fit(run_config(optimizer=optimizer), tmp_path)
    expected = [0.01 * factor for factor in factors(optimizer)]
    assert watch.rates == pytest.approx(expected, rel=1e-12)
    assert [recorder.logged[step]["train/learning_rate"] for step in range(1, 21)] == watch.rates


def test_a_fit_logs_the_mean_over_all_tokens_since_the_last_time(tmp_path: Path) -> None:
    # 23 sentences of unequal length in batches of 5: the last batch of an epoch is smaller.
    _, recorder, watch = fit(run_config(), tmp_path, log_every_n_steps=7)
    assert list(recorder.logged) == [7, 14, 20]  # the last update too
    for start, stop in ((0, 7), (7, 14), (14, 20)):
        total = math.fsum(loss for loss, _ in watch.losses[start:stop])
        tokens = sum(tokens for _, tokens in watch.losses[start:stop])
        logged = recorder.logged[stop]
        assert set(logged) == set(TRAIN)
        assert logged["train/loss"] == pytest.approx(total / tokens, abs=1e-12)
        assert logged["train/gradient_norm"] == pytest.approx(watch.norms[stop - 1], rel=1e-12)
        assert 0 < logged["train/tokens_per_second"] < math.inf


def test_the_logged_norm_is_that_before_clipping(tmp_path: Path) -> None:
    trainer = TrainerConfig(max_steps=3, val_check_interval=99, precision="64-true", gradient_clip_val=1e-3)
    _, recorder, watch = fit(run_config(trainer=trainer), tmp_path)
    for step, norm in enumerate(watch.norms, start=1):
        assert norm > 0.01
        assert recorder.logged[step]["train/gradient_norm"] == pytest.approx(norm, rel=1e-12)


def test_weight_decay_shrinks_matrices_and_changes_nothing_else(tmp_path: Path) -> None:
    # In one step from the same weights, all that decay adds is −rate · decay · weight.
    trainer = TrainerConfig(max_steps=1, val_check_interval=1_000, precision="64-true")
    weights = {}
    for decay in (0.0, 0.3):
        optimizer = OptimizerConfig(name=OptimizerName.adamw, weight_decay=decay, learning_rate=0.01)
        model, _, _ = fit(run_config(trainer=trainer, optimizer=optimizer), tmp_path)
        weights[decay] = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    begin = build_parts(run_config()).model.double().state_dict()
    for name, tensor in weights[0.3].items():
        is_matrix = name.endswith(("qkv.weight", "out.weight", "up.weight", "down.weight", "head.weight"))
        expected = -0.01 * 0.3 * begin[name] if is_matrix else torch.zeros_like(tensor)
        torch.testing.assert_close(tensor - weights[0.0][name], expected, rtol=0, atol=1e-14)
        assert not torch.equal(tensor, begin[name])


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_validation_is_a_sum_over_the_set(tmp_path: Path, batch_size: int, causal: bool) -> None:
    data = DataConfig(train_size=2, batch_size=batch_size, validation_size=53, test_size=31)
    config = run_config(data=data, model=ModelConfig(width=10, heads=5, context=7, causal=causal))
    parts = build_parts(config)
    task = DecoderTask(parts.model, config.optimizer, log_every_n_steps=1)
    with quiet_libraries():
        trainer = build_trainer(config, tmp_path, [], [])
        trainer.validate(task, datamodule=parts.data, verbose=False)
        measured = {name: float(value) for name, value in trainer.callback_metrics.items()}
        trainer.test(task, datamodule=parts.data, verbose=False)
        measured |= {name: float(value) for name, value in trainer.callback_metrics.items()}
    language = from_text(GRAMMAR, "S")
    for stage, batches in (("val", parts.data.val_dataloader()), ("test", parts.data.test_dataloader())):
        sentences = [VOCABULARY.decode(row) for batch in batches for row in batch.rows.tolist()]
        with torch.no_grad():
            total, tokens = direct_loss(parts.model, encoded(sentences))
        loss, floor = float(total) / tokens, -float(language.log_prob(sentences).sum()) / tokens
        assert measured[f"{stage}/loss"] == pytest.approx(loss, abs=1e-12)
        assert measured[f"{stage}/floor"] == pytest.approx(floor, abs=1e-12)
        assert measured[f"{stage}/excess_loss"] == pytest.approx(loss - floor, abs=1e-12)
        assert set(split_measures(stage)) <= set(measured)


def test_a_validation_remembers_nothing_of_the_one_before(tmp_path: Path) -> None:
    config = run_config()
    parts = build_parts(config)
    task = DecoderTask(parts.model, config.optimizer, log_every_n_steps=1)
    losses = []
    with quiet_libraries():
        trainer = build_trainer(config, tmp_path, [], [])
        for shift in (0.0, 3.0, -3.0):
            with torch.no_grad():
                parts.model.head.bias[VOCABULARY.end_id] += shift
            trainer.validate(task, datamodule=parts.data, verbose=False)
            losses.append(float(trainer.callback_metrics["val/loss"]))
    assert losses[1] > losses[0] + 0.1
    assert losses[2] == pytest.approx(losses[0], abs=1e-12)


@pytest.mark.parametrize(("log_every_n_steps", "step"), [(1, 1), (2, 2), (1_000, 3)])
def test_a_loss_that_is_not_finite_ends_the_fit(tmp_path: Path, log_every_n_steps: int, step: int) -> None:
    # At the latest at the last update, so that no run ends with weights that mean nothing.
    config = run_config(trainer=TrainerConfig(max_steps=3, val_check_interval=1_000))
    parts = build_parts(config)
    with torch.no_grad():
        parts.model.head.weight[3, 2] = math.nan
    with pytest.raises(DivergedError, match=f"the loss is nan at step {step}: .*learning_rate"):
        fit(config, tmp_path, parts, log_every_n_steps=log_every_n_steps)


def test_a_rate_that_is_far_too_large_is_told(tmp_path: Path) -> None:
    config = run_config(optimizer=OptimizerConfig(learning_rate=1e30), trainer=TrainerConfig(max_steps=9))
    with pytest.raises(DivergedError, match=r"the loss is (nan|inf) at step \d: .*learning_rate"):
        fit(config, tmp_path)


def test_a_fit_gets_nearer_to_the_floor(tmp_path: Path) -> None:
    config = run_config(
        data=DataConfig(train_size=None, batch_size=53),
        trainer=TrainerConfig(max_steps=150, val_check_interval=1_000),
        optimizer=OptimizerConfig(learning_rate=0.01),
    )
    _, recorder, _ = fit(config, tmp_path, log_every_n_steps=50)
    language = from_text(GRAMMAR, "S")
    floor = language.entropy().value / (language.mean_length().value + 1)
    before, *_, after = (values["train/loss"] for values in recorder.logged.values())
    assert floor < after < before
    assert after < floor + 0.05
