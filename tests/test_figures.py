"""The charts: laws that hold for each of them, and the numbers that they show."""

import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import polars as pl
import pytest

from grammarlab import figures, tables
from grammarlab.figures.theme import over_seeds

SETTINGS = ["model.width=8", "words=<b>&'\"é", "model.width=64"]
KIND = pl.Enum(["absent before", *SETTINGS])  # the first has no run yet
RNG = np.random.default_rng(5)


def each(*rows: Any, **schema: Any) -> pl.DataFrame:
    """The rows for each setting and two seeds; a callable is asked for its number each time."""
    filled = [
        (setting, seed, *(cell() if callable(cell) else cell for cell in row))
        for setting in SETTINGS
        for seed in (1, 2)
        for row in rows
    ]
    return pl.DataFrame(filled, schema={"setting": KIND, "seed": pl.Int64, **schema}, orient="row")


def some() -> float:
    return float(RNG.uniform(0.1, 0.9))


F = pl.Float64
WORDS = ["a", "b.c", "d[0]", "<i>"]
CURVES = each(
    *((step, some, 0.0625, some, some) for step in (0, 100, 200)),
    **{"step": pl.Int64, "val/loss": F, "val/floor": F, "val/excess_loss": F, "truth/kl": F},
)
POSITIONS = each(*((i, 1.0, 0.1 * i, some, some) for i in range(1, 6)), **(tables.SCHEMAS["positions"]))
EXACT = each(*((t, some, some) for t in (0.1, 1.0, 4.0)), **tables.SCHEMAS["temperatures"])
SAMPLED = each(
    *((t, m, 0.5, 0.4, 0.6) for t in (0.3, 1.0) for m in ("validity", "coverage")),
    temperature=F, measure=pl.String, value=F, low=F, high=F,
)  # fmt: skip
SENTENCES = each(
    *((" ".join(WORDS[:n]), -1.0 - n, lambda: -some() * 9, "yes") for n in range(5)), **tables.SCHEMAS["sentences"]
)
ATTENTION = pl.DataFrame(
    [
        (layer, head, q, k, WORDS[q], WORDS[k], some(), k <= q)
        for layer in (1, 2)
        for head in (1, 2, 3)
        for q in range(4)
        for k in range(4)
    ],
    schema=tables.SCHEMAS["attention"],
    orient="row",
)
NEXT_WORDS = pl.DataFrame(
    [(i + 1, " ".join(WORDS[:i]), word, some(), some()) for i in range(4) for word in WORDS],
    schema=tables.SCHEMAS["next_words"],
    orient="row",
)
LONG = each(*((m, some) for m in ("truth/kl", "truth/validity")), measure=pl.String, value=F)
BY_OPTION = LONG.with_columns(option=pl.col("setting").cast(pl.String), others=pl.lit(""))
DIFFERENCES = LONG.filter(seed=1).with_columns(mean=some(), low=-0.1, high=0.4, seeds=2).drop("value", "seed")
COORDINATES = pl.DataFrame(
    [
        (setting, dimension, label, number, shade)
        for setting, shade in zip(SETTINGS, (0.1, 0.2, 0.3), strict=True)
        for dimension, label, number in (("model.width", "8", 8.0), ("kind", setting, None), ("truth/kl", "0.1", shade))
    ],
    schema={"setting": pl.String, "dimension": pl.String, "label": pl.String, "number": F, "shade": F},
    orient="row",
)
MANY = ATTENTION.with_columns(setting=pl.lit(SETTINGS[0]).cast(KIND))
MANY = pl.concat([MANY, MANY.with_columns(setting=pl.lit(SETTINGS[1]).cast(KIND))])
ALL: dict[str, Callable[[], alt.ConcatChart]] = {
    "learning_curves": lambda: figures.learning_curves(CURVES),
    "positions": lambda: figures.positions(POSITIONS),
    "temperatures": lambda: figures.temperatures(EXACT, SAMPLED),
    "sampled alone": lambda: figures.temperatures(EXACT.clear(), SAMPLED.filter(seed=1)),
    "sentences": lambda: figures.sentences(SENTENCES, True),
    "drawn sentences": lambda: figures.sentences(SENTENCES, False),
    "attention": lambda: figures.attention(ATTENTION),
    "attention of one of several": lambda: figures.attention(MANY),
    "next_words": lambda: figures.next_words(NEXT_WORDS),
    "settings": lambda: figures.settings(LONG),
    "measure_by_option": lambda: figures.measure_by_option(BY_OPTION, "model.width"),
    "measure_by_option, others too": lambda: figures.measure_by_option(
        BY_OPTION.with_columns(others=pl.col("seed").cast(pl.String)), "model.width"
    ),
    "heat_map": lambda: figures.heat_map(
        LONG.with_columns(x=pl.col("setting").cast(pl.String), y=pl.lit("8")), "one", "other"
    ),
    "parallel_coordinates": lambda: figures.parallel_coordinates(COORDINATES, "truth/kl"),
    "paired_differences": lambda: figures.paired_differences(DIFFERENCES, SETTINGS[0]),
    "length_law": lambda: figures.length_law([0.1, 0.6, 0.3], 1.2, "a title"),
}
every_chart = pytest.mark.parametrize("name", ALL)


def units(node: dict[str, Any], rows: Any = None) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Each mark of a specification with the rows it draws."""
    rows = node.get("data", {}).get("name", rows)
    for child in (*node.get("concat", ()), *node.get("layer", ())):
        yield from units(child, rows)
    if "mark" in node:
        yield node, rows


def drawn(chart: alt.ConcatChart) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    specification = figures.specification(chart)
    return [(unit, specification["datasets"][rows]) for unit, rows in units(specification)]


@every_chart
def test_the_same_numbers_give_the_same_json(name: str) -> None:
    texts = [json.dumps(figures.specification(ALL[name]()), allow_nan=False) for _ in range(2)]
    assert texts[0] == texts[1]


@every_chart
def test_every_field_that_is_encoded_is_in_the_data(name: str) -> None:
    """A field that is not there draws nothing, and no one says so."""
    for unit, rows in drawn(ALL[name]()):
        for channel in unit["encoding"].values():
            for one in channel if isinstance(channel, list) else [channel]:
                if "field" in one:
                    assert rows and one["field"] in rows[0], one


@every_chart
def test_every_axis_of_numbers_has_a_title_and_no_label_is_cut(name: str) -> None:
    specification = figures.specification(ALL[name]())
    for unit, _ in units(specification):
        for axis in ("x", "y"):
            channel = unit["encoding"].get(axis, {})
            if channel.get("type") == "quantitative" and channel.get("axis", {}) is not None:
                assert channel.get("title") or unit["mark"]["type"] in ("rule", "text", "tick"), channel
    assert specification["config"]["axis"]["labelLimit"] == specification["config"]["legend"]["labelLimit"] == 0


@every_chart
def test_a_setting_has_the_same_colour_in_every_chart(name: str) -> None:
    expected = dict(zip(KIND.categories, figures.COLOURS, strict=False))
    for unit, _ in drawn(ALL[name]()):
        channel = unit["encoding"].get("color", {})
        if channel.get("field") == "setting":
            assert dict(zip(channel["scale"]["domain"], channel["scale"]["range"], strict=True)) == expected


@every_chart
def test_a_chart_is_written_without_a_browser(name: str, tmp_path: Path) -> None:
    figures.save(ALL[name](), tmp_path / "new" / "chart.svg")
    assert (tmp_path / "new" / "chart.svg").read_text().startswith("<svg")


def test_a_chart_is_written_as_png(tmp_path: Path) -> None:
    figures.save(ALL["settings"](), tmp_path / "chart.png")
    assert (tmp_path / "chart.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_words_of_every_kind_are_written_as_they_are(tmp_path: Path) -> None:
    import xml.etree.ElementTree as ET

    for name in ("settings", "learning_curves"):
        figures.save(ALL[name](), tmp_path / "chart.svg")
        texts = {"".join(node.itertext()) for node in ET.parse(tmp_path / "chart.svg").iter()}
        assert set(SETTINGS) <= texts, name


def test_another_ending_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"chart\.gif: a figure is written as \.png or \.svg"):
        figures.save(ALL["settings"](), tmp_path / "chart.gif")


def test_the_mean_over_seeds_is_that_of_students_t() -> None:
    scipy_stats = pytest.importorskip("scipy.stats")
    values = [0.3, 0.5, 0.9, 0.1]
    frame = pl.DataFrame({"setting": ["a"] * 5, "value": [*values, None]})
    (row,) = over_seeds(frame, ["setting"], "value").rows(named=True)
    low, high = scipy_stats.t.interval(0.95, 3, loc=np.mean(values), scale=scipy_stats.sem(values))
    assert (row["mean"], row["low"], row["high"]) == pytest.approx((np.mean(values), low, high), rel=1e-9)
    assert row["seeds"] == 4


def test_a_diverged_seed_is_not_left_out_of_a_mean() -> None:
    frame = pl.DataFrame({"setting": ["a", "a"], "value": [1.0, math.nan]})
    assert math.isnan(over_seeds(frame, ["setting"], "value")["mean"][0])


def test_an_interval_stays_within_what_the_measure_can_be() -> None:
    rows = [("a", seed, "truth/validity", value) for seed, value in ((1, 0.0), (2, 0.9), (3, 0.95))]
    chart = figures.settings(pl.DataFrame(rows, schema=["setting", "seed", "measure", "value"], orient="row"))
    (ends,) = [rows[0] for unit, rows in drawn(chart) if unit["mark"]["type"] == "rule"]
    assert (ends["low"], ends["high"]) == (0, 1)


def test_what_a_log_axis_cannot_show_is_said() -> None:
    below = CURVES.with_columns(pl.when(step=200).then(-1.0).otherwise("val/excess_loss").alias("val/excess_loss"))
    assert "3 means of 0 or less" in caption(figures.learning_curves(below))
    assert "0 or less" not in caption(figures.learning_curves(CURVES))


def caption(chart: alt.ConcatChart) -> str:
    return " ".join(figures.specification(chart)["title"]["text"])


def test_one_floor_is_one_black_line_and_two_are_in_the_settings_colours() -> None:
    def floors(frame: pl.DataFrame) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
        return [(unit, rows) for unit, rows in drawn(figures.learning_curves(frame)) if unit["mark"]["type"] == "rule"]

    ((unit, rows),) = floors(CURVES)
    assert (unit["mark"]["color"], [row["mean"] for row in rows]) == (figures.TRUTH, [0.0625])
    other = pl.when(pl.col("setting") == SETTINGS[1]).then(0.25).otherwise("val/floor").alias("val/floor")
    ((unit, rows),) = floors(CURVES.with_columns(other))
    assert unit["encoding"]["color"]["field"] == "setting"
    assert [row["mean"] for row in rows] == [0.0625, 0.25, 0.0625]


def test_the_mask_is_visible_in_the_attention() -> None:
    """What is hidden is crossed out in every panel, and only that."""
    crossed = [
        {(row["query"], row["key"]) for row in rows if not row["visible"]}
        for unit, rows in drawn(figures.attention(ATTENTION))
        if unit["mark"].get("text") == "×" and unit["transform"] == [{"filter": "!datum.visible"}]
    ]
    assert crossed == [{(q, k) for q in range(4) for k in range(4) if k > q}] * 6


def test_of_several_settings_one_is_chosen_from_a_menu() -> None:
    specification = figures.specification(figures.attention(MANY))
    (menu,) = [param for param in specification["params"] if "bind" in param]
    assert menu["value"] == SETTINGS[0] and menu["bind"]["options"] == SETTINGS[:2]
    for unit, _ in units(specification):
        assert {"filter": f"datum.setting == {menu['name']}"} in unit["transform"]


def test_impossible_for_the_model_is_no_error() -> None:
    frame = SENTENCES.with_columns(log_prob_model=pl.lit(-math.inf))
    for exact in (True, False):
        json.dumps(figures.specification(figures.sentences(frame, exact)), allow_nan=False)


def test_of_many_sentences_the_most_probable_are_shown_and_it_is_said() -> None:
    n = 300
    p = RNG.dirichlet(np.ones(n))
    frame = pl.DataFrame(
        {
            "setting": ["a"] * n,
            "seed": [1] * n,
            "text": [f"word {i} " * 20 for i in range(n)],
            "log_prob_language": np.log(p),
            "log_prob_model": np.log(p[::-1]),
        }
    )
    chart = figures.sentences(frame, True)
    shown = next(rows for unit, rows in drawn(chart) if unit["mark"]["type"] == "tick")
    best = sorted(p, reverse=True)[: len(shown)]
    assert [row["p"] for row in shown] == pytest.approx(best, rel=1e-12)
    assert len({row["label"] for row in shown}) == len(shown) and max(len(row["label"]) for row in shown) < 60
    assert f"{len(shown)} most probable of 300 sentences, {sum(best):.3g} of the mass" in caption(chart)
    half = figures.sentences(pl.concat([frame, frame.with_columns(text=pl.col("text") + "again")]), False)
    assert re.search(r"400 of 600 shown", caption(half))


def test_zero_temperature_and_nothing_sampled_are_no_error() -> None:
    chart = figures.temperatures(EXACT.clear(), SAMPLED.clear())
    assert "nothing sampled" in json.dumps(figures.specification(chart))


def test_more_settings_than_colours_are_told_apart_by_their_dashes() -> None:
    many = pl.concat([CURVES.filter(setting=SETTINGS[0]).with_columns(setting=pl.lit(f"s{i}")) for i in range(12)])
    looks = set()
    for unit, _ in drawn(figures.learning_curves(many)):
        if unit["mark"]["type"] == "line":
            encoding = unit["encoding"]
            both = zip(encoding["color"]["scale"]["range"], encoding["strokeDash"]["scale"]["range"], strict=True)
            looks |= {(colour, tuple(dash)) for colour, dash in both}
    assert len(looks) == 12
