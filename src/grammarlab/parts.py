"""From a configuration to parts that fit each other, and from a checkpoint back to both."""

from __future__ import annotations

import dataclasses
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from omegaconf import OmegaConf

from grammarlab import gpt2
from grammarlab.config import (
    ConfigError,
    ExportConfig,
    GeneratorName,
    LanguageConfig,
    ModelConfig,
    TrainConfig,
    language_inline,
)
from grammarlab.data import LanguageData
from grammarlab.evaluation import Truth
from grammarlab.language import Language, from_text, library_folder, written
from grammarlab.model import Decoder
from grammarlab.vocabulary import Vocabulary


def config_to_dict(config: TrainConfig) -> dict[str, Any]:
    """Plain containers, every value resolved."""
    plain = OmegaConf.to_container(OmegaConf.structured(config), resolve=True, enum_to_str=True)
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def config_from_dict(plain: dict[str, Any]) -> TrainConfig:
    config = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(TrainConfig), plain))
    assert isinstance(config, TrainConfig)
    return config


def library_language(name: str) -> LanguageConfig:
    """A language of the library, for a configuration made in code."""
    entry = yaml.safe_load((library_folder() / f"{name}.yaml").read_text(encoding="utf-8"))
    if "generator" in entry:
        entry["generator"] = GeneratorName(entry["generator"])
    return LanguageConfig(**entry)


def with_grammar_inline(config: TrainConfig) -> TrainConfig:
    """The same configuration with the grammar's text in it, so that a checkpoint needs no other file."""
    return dataclasses.replace(config, language=language_inline(config.language))


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
    config = with_grammar_inline(config)
    language, notes = _read_language(config)
    vocabulary = Vocabulary(language.terminals)
    _check_sentence(config, vocabulary)
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


def _check_sentence(config: TrainConfig, vocabulary: Vocabulary) -> None:
    sentence, limit = config.evaluation.sentence, config.model.context - 1
    if sentence is None:
        return
    try:
        words = len(vocabulary.word_ids(sentence.split()))
    except ValueError as error:
        raise ConfigError(f"evaluation.sentence={sentence}: {error}") from None
    if words > limit:
        raise ConfigError(
            f"evaluation.sentence={sentence}: has {words} words; model.context={limit + 1} holds the begin token and "
            f"{limit}"
        )


def _read_language(config: TrainConfig) -> tuple[Language, list[str]]:
    """The language given what the context holds, and what the user should know about it."""
    full, notes = _read_grammar(config.language)
    words = config.model.context - 1
    try:
        language = full.truncated(words)
    except ValueError as error:
        raise ConfigError(
            f"model.context={config.model.context}: it holds the begin token and {words} words; {error}"
        ) from None
    if language is not full:
        notes.append(
            f"model.context={config.model.context} holds {words} words: the language is taken given that, which keeps "
            f"{language.mass:.6g} of its probability"
        )
    return language, notes


def _read_grammar(config: LanguageConfig) -> tuple[Language, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            text, parameters = written(config.grammar, config.generator, config.parameters)
            language = from_text(text, config.start, parameters=parameters, allow_improper=config.allow_improper)
        except ValueError as error:
            raise ConfigError(
                f"language={config.name}: {error}".replace("allow_improper", "language.allow_improper")
            ) from None
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
    """The configuration and the model's weights, of a file that a run saved or a folder that `export` wrote.

    Raises `ConfigError` for any other.
    """
    if Path(path).is_dir():
        return _load_folder(path)
    if not Path(path).is_file():
        raise ConfigError(f"checkpoint={path}: no such file")
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        config = config_from_dict(checkpoint["hyper_parameters"]["config"])
        prefix = "model."
        weights = {k.removeprefix(prefix): v for k, v in checkpoint["state_dict"].items() if k.startswith(prefix)}
    except Exception as error:
        raise ConfigError(f"checkpoint={path}: is not a checkpoint of grammarlab") from error
    return config, weights


def _load_folder(path: str) -> tuple[TrainConfig, dict[str, torch.Tensor]]:
    last = Path(path, "checkpoints", "last.ckpt")
    if last.exists():
        raise ConfigError(f"checkpoint={path}: is a run's folder; its last checkpoint is {last}")
    try:
        plain = gpt2.read_run(Path(path))
        try:
            config = config_from_dict(plain)
        except Exception as error:
            reason = str(error).splitlines()[0]
            raise ConfigError(f"its {gpt2.RUN} is not a run's configuration: {reason}") from None
        vocabulary = Vocabulary(_read_language(config)[0].terminals)
        return config, gpt2.read_weights(Path(path), config.model, vocabulary)
    except ConfigError as error:
        raise ConfigError(f"checkpoint={path}: {error}") from error


def export(config: ExportConfig) -> Path:
    """Write a checkpoint in another format; returns the folder.

    Raises `ConfigError` for a folder that holds something else than an export, and for a model that the format has not.
    """
    source = Path(config.checkpoint).absolute()
    trained, weights = load_checkpoint(config.checkpoint)
    folder = Path(config.into) if config.into else source.with_name(f"{source.stem}-{config.format}")
    exists = folder.exists()
    if exists and not (folder.is_dir() and ((folder / gpt2.RUN).exists() or not any(folder.iterdir()))):
        raise ConfigError(f"into={folder}: is there, and not an export to replace; name another folder")
    vocabulary = Vocabulary(_read_language(trained)[0].terminals)
    model = build_model(trained.model, vocabulary, trained.seed)
    restore(model, weights)
    gpt2.write(folder, model.eval(), vocabulary, config_to_dict(trained))
    return folder


# What a run that goes on from a checkpoint may change: how it is watched, and when it ends.
MAY_CHANGE_ON_RESUME = (
    "checkpoint",
    "evaluation",
    "generation",
    "group",
    "logger",
    "name",
    "tags",
    "trainer.checkpoint_interval",
    "trainer.enable_progress_bar",
    "trainer.fast_dev_run",
    "trainer.log_every_n_steps",
    "trainer.max_epochs",
    "trainer.max_steps",
    "trainer.val_check_interval",
)


def check_resume(saved: TrainConfig, config: TrainConfig) -> None:
    """Raises `ConfigError` where going on from a checkpoint would change what is trained, or cannot be."""
    if config.checkpoint is not None:
        check_resumable(config.checkpoint)
    old, new = (_flat(config_to_dict(each)) for each in (saved, with_grammar_inline(config)))
    for name in new:
        if not name.startswith(MAY_CHANGE_ON_RESUME) and new[name] != old.get(name):
            raise ConfigError(
                f"{name}={new[name]}: the run of the checkpoint has {name}={old.get(name)}, which going on cannot "
                f"change; what it can: {', '.join(MAY_CHANGE_ON_RESUME[1:])}"
            )


def check_resumable(path: str) -> None:
    """Raises `ConfigError` for a folder of `export`."""
    if Path(path, "config.json").exists():
        raise ConfigError(
            f"checkpoint={path}: an export has no state of the optimizer to go on from; last.ckpt of its run has"
        )


def _flat(plain: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in plain.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def restore(model: Decoder, weights: dict[str, torch.Tensor]) -> None:
    """Put saved weights into a model, in the precision in which they were saved."""
    model.to(weights["token_embedding.weight"].dtype).load_state_dict(weights)
