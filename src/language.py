"""python src/language.py --help"""

import hydra
from omegaconf import DictConfig

from grammarlab import cli, commands
from grammarlab.config import LanguageCheckConfig


@hydra.main(version_base="1.3", config_path="../conf", config_name="language")
def main(config: DictConfig) -> None:
    commands.language_job(config)


if __name__ == "__main__":
    cli.start(main, LanguageCheckConfig)
