"""python src/benchmark.py --help"""

import hydra
from omegaconf import DictConfig

from grammarlab import cli, commands
from grammarlab.config import BenchmarkConfig


@hydra.main(version_base="1.3", config_path="../conf", config_name="benchmark")
def main(config: DictConfig) -> None:
    commands.benchmark_job(config)


if __name__ == "__main__":
    cli.start(main, BenchmarkConfig)
