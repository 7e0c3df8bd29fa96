"""python src/dashboard.py --help"""

import hydra
from omegaconf import DictConfig

from grammarlab import cli, commands
from grammarlab.config import DashboardConfig


@hydra.main(version_base="1.3", config_path="../conf", config_name="dashboard")
def main(config: DictConfig) -> None:
    commands.dashboard_job(config)


if __name__ == "__main__":
    cli.start(main, DashboardConfig)
