"""python src/evaluate.py --help"""

import hydra
from omegaconf import DictConfig

from grammarlab import cli, commands
from grammarlab.config import EvaluateConfig


@hydra.main(version_base="1.3", config_path="../conf", config_name="evaluate")
def main(config: DictConfig) -> None:
    commands.evaluate_job(config)


if __name__ == "__main__":
    cli.start(main, EvaluateConfig)
