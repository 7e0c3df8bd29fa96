"""python src/board.py outputs/sweeps/… [more folders] [watch=true] [baseline=SETTING] [into=FILE.html]

Writes the runs as one page, board.html in the first folder or the file that `into` names: a table of all runs, the
figures of the finished ones, samples and configurations. It opens from the disk and needs no network.

watch=true writes it anew whenever something changes, until nothing runs there any more; an open page follows by itself.
baseline=SETTING is what the others are compared with, named as in the table; without it the first.
"""

import sys

from grammarlab import cli, commands
from grammarlab.config import BoardConfig

if __name__ == "__main__":
    cli.start(lambda: commands.board_command(sys.argv[1:], __doc__), BoardConfig)
