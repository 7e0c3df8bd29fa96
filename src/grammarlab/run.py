"""A run from its configuration to its results: build, fit, evaluate, record, resume. Knows no Hydra.

    config = TrainConfig(language=LanguageConfig(start="S", grammar="S -> 'a' [1/2] | 'b' [1/2]"))
    metrics = train(config, Path("outputs/runs/mine"))
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import platform
import subprocess
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
import yaml
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.profilers import PassThroughProfiler
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from omegaconf import OmegaConf

from grammarlab import tracking
from grammarlab.callbacks import Checkpoints, Interrupted, Measure, ProgressBar, StopOnSignal
from grammarlab.config import (
    Accelerator,
    ConfigError,
    EvaluateConfig,
    GenerateConfig,
    LanguageConfig,
    ModelConfig,
    TrainConfig,
)
from grammarlab.data import LanguageData
from grammarlab.evaluation import Sample, Truth, draw_samples, measure_names
from grammarlab.language import Language, from_text
from grammarlab.model import Decoder
from grammarlab.task import TRAIN_MEASURES, DecoderTask, split_measures
from grammarlab.vocabulary import Vocabulary

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

_DTYPES = {"64-true": torch.float64, "bf16-true": torch.bfloat16, "16-true": torch.float16}


# ---- configuration and parts -----------------------------------------------------------------------------------------


def config_to_dict(config: TrainConfig) -> dict[str, Any]:
    """Plain containers, every value resolved."""
    plain = OmegaConf.to_container(OmegaConf.structured(config), resolve=True, enum_to_str=True)
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def config_from_dict(plain: dict[str, Any]) -> TrainConfig:
    config = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(TrainConfig), plain))
    assert isinstance(config, TrainConfig)
    return config


def with_grammar_inline(config: TrainConfig) -> TrainConfig:
    """The same configuration with the grammar's text in it, so that a checkpoint needs no other file."""
    language = config.language
    if language.file is None:
        return config
    try:
        text = Path(language.file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "is not UTF-8 text"
        raise ConfigError(f"language.file={language.file}: {reason}") from None
    name = Path(language.file).stem if language.name == "file" else language.name
    return dataclasses.replace(config, language=LanguageConfig(name=name, start=language.start, grammar=text))


@dataclass(slots=True)
class Parts:
    """The parts of a run that agree with each other: sizes, ids, and what the context can hold."""

    language: Language
    vocabulary: Vocabulary
    data: LanguageData
    truth: Truth
    model: Decoder
    note: str | None  # what the user should know about them


def build_parts(config: TrainConfig) -> Parts:
    """Raises `ConfigError` for options that do not fit the language."""
    assert config.language.grammar is not None
    full, notes = _read_grammar(config.language)
    try:
        language = full.truncated(config.model.context - 1)
    except ValueError as error:
        raise ConfigError(
            f"model.context={config.model.context}: it holds the begin token and {config.model.context - 1} words; {error}"
        ) from None
    if language is not full:
        notes.append(
            f"model.context={config.model.context} holds {config.model.context - 1} words: the language is taken given "
            f"that, which keeps {getattr(language, 'mass', 1.0):.6g} of its probability"
        )
    vocabulary = Vocabulary(language.terminals)
    return Parts(
        language=language,
        vocabulary=vocabulary,
        data=LanguageData(language, vocabulary, config.data, config.seed),
        truth=Truth(
            language,
            vocabulary,
            limit=config.evaluation.enumeration_limit,
            samples=config.evaluation.samples,
            seed=config.seed,
        ),
        model=build_model(config.model, vocabulary, config.seed),
        note="; ".join(notes) or None,
    )


def _read_grammar(config: LanguageConfig) -> tuple[Language, list[str]]:
    assert config.grammar is not None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            language = from_text(config.grammar, config.start)
        except ValueError as error:
            raise ConfigError(f"language={config.name}: {error}") from None
    return language, [f"language={config.name}: {warning.message}" for warning in caught]


def build_model(config: ModelConfig, vocabulary: Vocabulary, seed: int) -> Decoder:
    """A fresh decoder, its weights fixed by the seed."""
    torch.manual_seed(seed)
    return Decoder(
        config,
        vocabulary_size=len(vocabulary),
        pad_id=vocabulary.pad_id,
        never_generated=(vocabulary.pad_id, vocabulary.begin_id),
    )


def load_checkpoint(path: str) -> tuple[TrainConfig, dict[str, torch.Tensor]]:
    """The configuration and the model's weights that a run saved. Raises `ConfigError` for any other file."""
    if not Path(path).is_file():
        raise ConfigError(f"checkpoint={path}: no such file")
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        config = config_from_dict(checkpoint["hyper_parameters"]["config"])
        prefix = "model."
        weights = {k.removeprefix(prefix): v for k, v in checkpoint["state_dict"].items() if k.startswith(prefix)}
    except Exception as error:
        raise ConfigError(f"checkpoint={path}: is not a checkpoint of grammarlab ({type(error).__name__})") from error
    return config, weights


def _load_parts(path: str) -> tuple[TrainConfig, Parts]:
    config, weights = load_checkpoint(path)
    parts = build_parts(config)
    parts.model.load_state_dict(weights)
    return config, parts


# ---- training ----------------------------------------------------------------------------------------------------------


def train(
    config: TrainConfig,
    folder: Path,
    *,
    name: str | None = None,
    group: str | None = None,
    progress_bar: bool = True,
    on_note: Any = print,
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
        load_checkpoint(config.checkpoint)
    _check_device(config)
    parts = build_parts(config)
    if parts.note:
        on_note(parts.note)

    dev = config.trainer.fast_dev_run
    plain = config_to_dict(config)
    folder.mkdir(parents=True, exist_ok=True)
    record = Record(folder, plain)
    checkpoints = None if dev else Checkpoints(folder / "checkpoints", config.trainer.checkpoint_interval)
    stop = StopOnSignal(checkpoints)
    holdout = parts.data.holdout.sentences if parts.data.holdout else None
    measure = Measure(
        parts.truth, config.evaluation, config.generation, seed=config.seed, holdout=holdout or frozenset()
    )
    measures = _all_measures(config, parts)
    try:
        with (
            stop.listening(),
            quiet_libraries(),
            _metrics_file(None if dev else folder / "metrics.csv", measures) as metrics_file,
            tracking.wandb_logger(
                config.logger,
                {**plain, "folder": str(folder)},
                measures=measures,
                name=config.name or name or folder.name,
                group=config.group or group,
                tags=config.tags,
                enabled=not dev,
            ) as wandb_logger,
        ):
            if wandb_logger is not None:
                record.wandb_run = tracking.wandb_run_folder(wandb_logger)
            task = DecoderTask(
                parts.model,
                config.optimizer,
                log_every_n_steps=config.trainer.log_every_n_steps,
                hyperparameters={"config": plain},
            )
            callbacks: list[Callback] = [measure, *([checkpoints] if checkpoints else []), stop]
            if progress_bar and config.trainer.enable_progress_bar:
                callbacks.insert(0, ProgressBar(refresh_rate=20))
            loggers = [logger for logger in (metrics_file, wandb_logger) if logger is not None]
            trainer = build_trainer(config, folder, loggers, callbacks)
            if config.checkpoint is None:
                trainer.validate(task, datamodule=parts.data, verbose=False)
            trainer.fit(task, datamodule=parts.data, ckpt_path=config.checkpoint)
            if config.checkpoint is not None and measure.step is None and trainer.global_step >= task.last_step:
                on_note(
                    f"nothing to train: the checkpoint is at step {trainer.global_step}, trainer.max_steps is "
                    f"{config.trainer.max_steps}"
                )
            if measure.step != trainer.global_step or dev:
                trainer.validate(task, datamodule=parts.data, verbose=False)
            trainer.test(task, datamodule=parts.data, verbose=False)
            assert measure.comparison is not None
            if not dev:
                tracking.write_samples(folder / "samples.csv", measure.samples)
            if wandb_logger is not None:
                loss, entropy = measure.comparison.loss_by_position, parts.truth.entropy_by_position
                tracking.log_result(wandb_logger, measure.samples, loss.tolist(), entropy.tolist())
        record.metrics = {} if metrics_file is None else dict(metrics_file.last)
        record.write("dev" if dev else "finished")
    except Interrupted as error:
        record.write("interrupted", error=str(error))
        raise
    except BaseException as error:
        record.fail(error)
        raise
    return record.metrics


def record_failure(folder: Path, error: BaseException) -> None:
    """Say in the folder of a job why it failed, unless the run has said so itself."""
    if not (folder / "results.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        Record(folder, None).fail(error)


def build_trainer(
    config: TrainConfig, folder: Path | None, loggers: Sequence[Any], callbacks: Sequence[Callback]
) -> pl.Trainer:
    """Lightning's Trainer with what this project never uses switched off: each costs time at every step."""
    trainer = config.trainer
    return pl.Trainer(
        accelerator=trainer.accelerator.value,
        devices=1,
        precision=trainer.precision,  # type: ignore[arg-type]  # checked against Lightning's list
        max_steps=trainer.max_steps,
        max_epochs=-1 if trainer.max_epochs is None else trainer.max_epochs,
        val_check_interval=trainer.val_check_interval,
        check_val_every_n_epoch=None,
        log_every_n_steps=0,  # the task logs by itself
        gradient_clip_val=trainer.gradient_clip_val,
        fast_dev_run=trainer.fast_dev_run,
        num_sanity_val_steps=0,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=any(isinstance(callback, ProgressBar) for callback in callbacks),
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


def _all_measures(config: TrainConfig, parts: Parts) -> list[str]:
    return [
        *TRAIN_MEASURES,
        *split_measures("val"),
        *measure_names(
            config.generation.temperatures, exact=parts.truth.exact, holdout=parts.data.holdout is not None
        ),
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


class Record:
    """`results.json` and `config.yaml` of a run. It is claimed exclusively: no folder is shared by two runs."""

    def __init__(self, folder: Path, config: dict[str, Any] | None) -> None:
        self.path = folder / "results.json"
        self.metrics: dict[str, float] = {}
        self.wandb_run: str | None = None
        self._start = time.perf_counter()
        self._versions = versions()
        self._commit = commit()
        try:
            self.path.open("x").close()
        except FileExistsError:
            raise ConfigError(f"{folder}: holds a run already; a run goes into a folder of its own") from None
        self.write("interrupted", error="killed, or still running")
        if config is not None:
            text = yaml.safe_dump(config, sort_keys=False, allow_unicode=True)
            (folder / "config.yaml").write_text(text, encoding="utf-8")

    def fail(self, error: BaseException) -> None:
        """Status `failed`, the message in results.json and the traceback in error.txt."""
        text = "".join(traceback.format_exception(error))
        self.path.with_name("error.txt").write_text(text, encoding="utf-8")
        self.write("failed", error=f"{type(error).__name__}: {error}")

    def write(self, status: str, error: str | None = None) -> None:
        content = {
            "status": status,
            **({"error": error} if error else {}),
            "metrics": self.metrics,
            "seconds": round(time.perf_counter() - self._start, 3),
            "versions": self._versions,
            "commit": self._commit,
            "wandb_run": self.wandb_run,
        }
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        os.replace(temporary, self.path)


def versions() -> dict[str, str]:
    packages = ("grammarlab", "torch", "lightning", "hydra-core", "wandb", "numpy")
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def commit() -> str | None:
    """The commit of this code, with `+changes` where the checkout differs from it; None outside a checkout."""
    here = Path(__file__).resolve().parent
    try:
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, timeout=10)
        changes = subprocess.run(
            ["git", "status", "--porcelain", "--untracked-files=no"], cwd=here, capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if head.returncode:
        return None
    return head.stdout.strip() + ("+changes" if changes.stdout.strip() else "")


# ---- after training ----------------------------------------------------------------------------------------------------


def evaluate(config: EvaluateConfig) -> tuple[TrainConfig, dict[str, float]]:
    """The measures of a checkpoint, by the same code and on the same sentences as at the end of its own run."""
    torch.set_num_threads(config.torch_threads)
    trained, _ = load_checkpoint(config.checkpoint)
    changes = {
        "seed": trained.seed if config.seed is None else config.seed,
        "data": dataclasses.replace(trained.data, batch_size=config.batch_size or trained.data.batch_size),
        "generation": dataclasses.replace(
            trained.generation,
            temperatures=config.temperatures or trained.generation.temperatures,
            samples=config.samples or trained.generation.samples,
        ),
        "trainer": dataclasses.replace(trained.trainer, fast_dev_run=False),
    }
    trained, parts = _load_parts(config.checkpoint)
    trained = dataclasses.replace(trained, **changes)  # type: ignore[arg-type]  # each of its field's type
    parts.data = LanguageData(parts.language, parts.vocabulary, trained.data, trained.seed)
    holdout = parts.data.holdout.sentences if parts.data.holdout else None
    measure = Measure(
        parts.truth, trained.evaluation, trained.generation, seed=trained.seed, holdout=holdout or frozenset()
    )
    task = DecoderTask(parts.model, trained.optimizer, log_every_n_steps=trained.trainer.log_every_n_steps)
    with quiet_libraries():
        trainer = build_trainer(trained, None, [], [measure])
        trainer.validate(task, datamodule=parts.data, verbose=False)
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        trainer.test(task, datamodule=parts.data, verbose=False)
        metrics |= {name: float(value) for name, value in trainer.callback_metrics.items()}
    return trained, metrics


def generate(config: GenerateConfig) -> Iterator[tuple[str, Sample]]:
    """`samples` sentences for each prompt, with the prompt that they go on from.

    Raises `ConfigError` for unknown words, prompts longer than the context, and a cache that the model refuses.
    """
    torch.set_num_threads(config.torch_threads)
    trained, parts = _load_parts(config.checkpoint)
    parts.model.to(_DTYPES.get(trained.trainer.precision, torch.float32))
    if config.prompts_file is None:
        prompts = [config.prompt]
    else:
        try:
            prompts = Path(config.prompts_file).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "is not UTF-8 text"
            raise ConfigError(f"prompts_file={config.prompts_file}: {reason}") from None
    limit = trained.model.context - 1
    for prompt in prompts:
        words = prompt.split()
        if len(words) > limit:
            raise ConfigError(
                f"prompt={prompt!r}: has {len(words)} words; model.context={trained.model.context} holds the begin token "
                f"and {limit}"
            )
        try:
            parts.vocabulary.word_ids(words)
        except ValueError as error:
            raise ConfigError(f"prompt={prompt!r}: {error}") from None
    if config.cache and not trained.model.causal:
        raise ConfigError("cache=true: the model was trained with model.causal=false, and only a causal one can use a cache")
    rows = [prompt for prompt in prompts for _ in range(config.samples)]
    samples = draw_samples(
        parts.model,
        parts.language,
        parts.vocabulary,
        [prompt.split() for prompt in rows],
        temperature=config.temperature,
        seed=config.seed,
        max_new_tokens=config.max_new_tokens,
        cache=config.cache,
    )
    yield from zip(rows, samples, strict=True)
