"""python src/export.py --help"""

import hydra
from omegaconf import DictConfig

from grammarlab import cli, commands
from grammarlab.config import ExportConfig


@hydra.main(version_base="1.3", config_path="../conf", config_name="export")
def main(config: DictConfig) -> None:
    commands.export_job(config)


if __name__ == "__main__":
    cli.start(main, ExportConfig)
