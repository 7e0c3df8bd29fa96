"""python src/generate.py --help"""

import hydra
from omegaconf import DictConfig

from grammarlab import cli, commands
from grammarlab.config import GenerateConfig


@hydra.main(version_base="1.3", config_path="../conf", config_name="generate")
def main(config: DictConfig) -> None:
    commands.generate_job(config)


if __name__ == "__main__":
    cli.start(main, GenerateConfig)
