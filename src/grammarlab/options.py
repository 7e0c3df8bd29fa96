"""From Hydra's configuration to typed options, and from its errors to one line."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Collection, Iterator
from typing import TypeVar, get_type_hints

from hydra.errors import MissingConfigException, OverrideParseException
from omegaconf import DictConfig, MissingMandatoryValue, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from grammarlab.config import ConfigError

T = TypeVar("T")


def one_line(error: BaseException, schema: type) -> str:
    """An error of Hydra's or OmegaConf's as one line that names the option, the value and what is allowed.

    `schema`: the dataclass among whose options a misspelt one is looked for.
    """
    text = " ".join(str(error).split())
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, OverrideParseException) and "=" not in error.override:
        return f"cannot read {error.override!r}: options are written name=value, without blanks around the ="
    if isinstance(error, OverrideParseException):
        return (
            f"cannot read {error.override!r}: a value with special characters needs quotes of its own inside those of "
            "the shell, as in \"prompt='a (b)'\""
        )
    if isinstance(error, MissingConfigException) and error.options is not None and error.missing_cfg_file:
        group, _, choice = error.missing_cfg_file.rpartition("/")
        return f"{group}={choice}: no such choice; there are {', '.join(error.options)}"
    if match := re.match(r"Ambiguous value for argument '([^=]*)=(.*?)'", text):
        option, values = match.groups()
        return f"{option}={values}: to sweep over several values add -m; a list is written {option}=[{values}]"
    if match := re.match(r"Could not override '(.*?)'", text):
        return _unknown(match[1], schema)

    cause = error
    while cause.__cause__ is not None and not isinstance(cause, OmegaConfBaseException):
        cause = cause.__cause__
    if isinstance(cause, MissingMandatoryValue):
        return f"{cause.full_key}: must be given, as {cause.full_key}=…"
    if isinstance(cause, OmegaConfBaseException) and cause is not error:
        return f"{text.removeprefix('Error merging override ')}: {reason(cause)}"
    return text


_TYPE_RULES = {
    "is not a valid bool": "must be true or false",
    "could not be converted to Integer": "must be a whole number",
    "could not be converted to Float": "must be a number",
    "is not a ListConfig": "must be a list, written [a,b]",
}


def reason(error: OmegaConfBaseException) -> str:
    """What is allowed, without OmegaConf's own terms where they are known."""
    text = str(error.msg or error).splitlines()[0]
    return next((rule for ending, rule in _TYPE_RULES.items() if ending in text), text)


def _unknown(option: str, schema: type) -> str:
    if option.startswith("language.parameters."):
        return f"{option}: no such parameter in the language's YAML; one that its grammar names is given as +{option}=…"
    near = difflib.get_close_matches(option, _option_names(schema), n=1)
    return f"{option}: no such option" + (f"; did you mean {near[0]}?" if near else "")


def _option_names(schema: type, prefix: str = "") -> list[str]:
    names: list[str] = []
    hints = get_type_hints(schema)
    for field in dataclasses.fields(schema):
        inner = hints[field.name]
        names.append(prefix + field.name)
        if dataclasses.is_dataclass(inner) and isinstance(inner, type):
            names += _option_names(inner, f"{prefix}{field.name}.")
    return names


def to_config(config: DictConfig, schema: type[T]) -> T:
    """The typed configuration, checked by its dataclasses. Raises `ConfigError`."""
    known = set(_option_names(schema))
    for option in _keys(config, known):
        if option not in known:  # `+model.casual=false` gets past Hydra's own check
            raise ConfigError(_unknown(option, schema))
    converted = OmegaConf.to_object(config)
    assert isinstance(converted, schema)
    return converted


def _keys(config: DictConfig, known: Collection[str], prefix: str = "") -> Iterator[str]:
    """The options of a configuration; those of a dictionary, whose keys are the user's, as one."""
    for key in config:
        option = f"{prefix}{key!s}"
        yield option
        below = not OmegaConf.is_missing(config, key) and isinstance(config[key], DictConfig)
        if below and any(name.startswith(f"{option}.") for name in known):
            yield from _keys(config[key], known, f"{option}.")
