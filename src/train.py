"""python src/train.py --help"""

import hydra
from omegaconf import DictConfig

from grammarlab import cli
from grammarlab.config import TrainConfig


@hydra.main(version_base="1.3", config_path="../conf", config_name="train")
def main(config: DictConfig) -> object:
    return cli.train_job(config)


if __name__ == "__main__":
    cli.start(main, TrainConfig)
