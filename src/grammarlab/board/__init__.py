"""Runs as one page: a file of its own that opens from a disk without a network.

`data` gathers what the folders of runs hold, `page` draws it, `files` writes it, again and again where it is watched.
"""

from grammarlab.board.data import gather
from grammarlab.board.files import Seen, write
from grammarlab.board.page import render

__all__ = ["Seen", "gather", "render", "write"]
