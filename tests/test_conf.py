"""Every shipped YAML composes, builds and says nothing that the dataclasses do not know."""

from pathlib import Path

import pytest
import torch
import yaml
from conftest import ROOT
from hydra import compose, initialize_config_dir

from grammarlab import cli
from grammarlab.config import TrainConfig
from grammarlab.language import load
from grammarlab.parts import build_model, build_parts
from grammarlab.vocabulary import Vocabulary

CONF = ROOT / "conf"
CHOICES = [
    (path.parent.relative_to(CONF).as_posix(), path.stem)
    for path in sorted(CONF.rglob("*.yaml"))
    if path.parent != CONF and path.stem != "file"
]


@pytest.mark.parametrize("group, name", CHOICES, ids=["=".join(choice) for choice in CHOICES])
def test_every_choice_composes_and_builds(group: str, name: str) -> None:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        # Languages of long sentences need room for the shortest; few of them say as much as many.
        room = ["model.context=800" if name.startswith(("cfg3", "random")) else "model.context=40"]
        few = ["evaluation.samples=4", "data.train_size=4", "data.validation_size=4", "data.test_size=4"]
        options = [*room, *few] if group == "language" else []
        config = cli.to_config(compose("train", [f"{group}={name}", *options]), TrainConfig)
    if group == "model":  # hundreds of millions of weights, none of them kept
        with torch.device("meta"):
            assert build_model(config.model, Vocabulary(["word"]), config.seed) is not None
    else:
        assert build_parts(config).model is not None


def test_yaml_repeats_no_default_of_the_lesson() -> None:
    """The defaults stand in code once: the composed default run is the dataclasses' own."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = cli.to_config(compose("train"), TrainConfig)
    assert config == TrainConfig(language=config.language)


@pytest.mark.parametrize("path", sorted((CONF / "language").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_language_of_the_library_loads_by_its_name(path: Path) -> None:
    entry = yaml.safe_load(path.read_text())
    assert entry["name"] == path.stem
    if path.stem == "file":
        with pytest.raises(ValueError, match=r"no language 'file' in the library; it has .*captions"):
            load("file")
    else:
        assert load(path.stem).mean_length().value > 0
