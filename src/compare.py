"""python src/compare.py outputs/sweeps/… [more folders] [measures=[truth/kl,…]] [into=FOLDER]

Prints the table of finished runs, a row per setting with mean and 95 % interval over seeds, and writes it as
compare.csv and compare.png into the first folder, or the one that `into` names.
"""

import sys

from grammarlab import cli, commands
from grammarlab.config import CompareConfig

if __name__ == "__main__":
    cli.start(lambda: commands.compare_command(sys.argv[1:], __doc__), CompareConfig)
