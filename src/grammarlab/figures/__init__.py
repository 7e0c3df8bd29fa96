"""Pictures from numbers: pure functions of polars frames to charts, made once for W&B, the board and papers.

A frame's column `setting` names what its runs have in common, `seed` tells those runs apart. Where `setting` is a
`polars.Enum`, all its categories get their colour, in this order, whether the frame has them or not: the same setting
has the same colour in every chart.
"""

from grammarlab.figures.language import length_law
from grammarlab.figures.run import attention, learning_curves, next_words, positions, sentences, temperatures
from grammarlab.figures.sweep import heat_map, measure_by_option, paired_differences, parallel_coordinates, settings
from grammarlab.figures.theme import COLOURS, TRUTH, save, specification

__all__ = [
    "COLOURS",
    "TRUTH",
    "attention",
    "heat_map",
    "learning_curves",
    "length_law",
    "measure_by_option",
    "next_words",
    "paired_differences",
    "parallel_coordinates",
    "positions",
    "save",
    "sentences",
    "settings",
    "specification",
    "temperatures",
]
