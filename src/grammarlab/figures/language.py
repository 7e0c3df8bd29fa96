"""Pictures of a language alone."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import polars as pl

from grammarlab.figures.theme import COLOURS, TRUTH, data, finished, panel


def length_law(law: Sequence[float], mean: float | None, title: str) -> alt.ConcatChart:
    """Probability of 0, 1, … words; the mean as a line, where there is one within the axis."""
    frame = pl.DataFrame({"words": range(len(law)), "probability": list(law)})
    bars = alt.Chart(data(frame.with_columns(low=pl.col("words") - 0.4, high=pl.col("words") + 0.4)))
    x = alt.X("low:Q", title="words of a sentence", axis=alt.Axis(format="d", tickMinStep=1))
    layers: list[alt.Chart] = [
        bars.mark_bar(color=COLOURS[0]).encode(
            x=x,
            x2="high:Q",
            y=alt.Y("probability:Q", title="probability"),
            tooltip=["words:Q", alt.Tooltip("probability:Q", format=".4g")],
        )
    ]
    if mean is not None and mean < len(law):
        line = alt.Chart(pl.DataFrame({"mean": [mean], "label": [f"mean {mean:.4g}"]}))
        layers.append(line.mark_rule(color=TRUTH, strokeDash=[5, 3]).encode(x="mean:Q"))
        layers.append(
            line.mark_text(align="left", dx=5, baseline="top").encode(x="mean:Q", y=alt.value(0), text="label:N")
        )
    return finished([panel(*layers, name="lengths", title=title, width=380, height=220)])
