"""A board as one HTML file: charts, tables and all that they need inside it."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import polars as pl
import yaml
from markupsafe import Markup, escape

from grammarlab import figures, sweep, tables
from grammarlab.board.data import SHOWN_SAMPLES, Board
from grammarlab.sweep import Difference, Run, written
from grammarlab.tables import SHOWN_END

_ACTIONS = {"export": True, "source": False, "compiled": False, "editor": False}  # the editor would be on the network
EMBED = {"renderer": "svg", "actions": _ACTIONS}
_NO_DIFFERENCE = ("name", "checkpoint")  # of a run's options: said elsewhere, or of no weight


@dataclass(frozen=True, slots=True)
class Figure:
    name: str
    title: str
    specification: dict[str, Any]


def render(board: Board, *, running: bool = False, refresh: float | None = None) -> str:
    """The page. `running`: more may come. `refresh`: seconds after which a browser is to read it again.

    Raises `ValueError` for a damaged table.
    """
    common, differing = _configurations(board.runs)
    samples, of = _samples(board)
    return _template().render(
        board=board,
        running=running,
        refresh=refresh,
        vega=Markup(_vega()),
        datatables=Markup(_datatables()),
        embed=EMBED,
        figures=list(_figures(board)),
        settings=_settings(board),
        differences=_paired(board),
        runs=Markup(_interactive(_runs(board, differing), "runs")),
        samples=None if samples is None else Markup(_interactive(samples, "samples", html=True)),
        samples_shown=None if samples is None else samples.height,
        samples_of=of,
        common=yaml.safe_dump(common, sort_keys=False, allow_unicode=True),
        configurations=Markup(_interactive(_differences(board.runs, differing), "configurations")),
        commits=dict(Counter(run.commit or "unknown" for run in board.runs)),
    )


@cache
def _template() -> jinja2.Template:
    folder = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(
        loader=folder, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    return environment.get_template("board.html.j2")


@cache
def _vega() -> str:
    import vl_convert

    return vl_convert.javascript_bundle()  # type: ignore[call-arg]  # without a snippet: all of vega-embed


@cache
def _datatables() -> str:
    import itables
    from itables import javascript

    return javascript.generate_init_offline_itables_html(itables.options.dt_bundle)


def _interactive(frame: pl.DataFrame, name: str, *, html: bool = False) -> str:
    """A table that sorts and filters. `html`: its texts are marked up, and what is no mark is escaped already."""
    from itables import javascript

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return javascript.to_html_datatable(
            frame,
            connected=False,
            table_id=name,
            allow_html=html,
            display_logo_when_loading=False,
            maxBytes=0,
            maxColumns=0,
            showIndex=False,
            lengthMenu=[10, 25, 100, 1000],
            classes="display compact",
            layout={"topStart": "search", "topEnd": "pageLength"},
            show_dtypes=False,
            text_in_header_can_be_selected=False,  # a click there sorts
            style="table-layout:auto;width:auto;margin:0",
            scrollX=True,
        )


# ---- figures -------------------------------------------------------------------------------------------------------


def _figures(board: Board) -> Iterator[Figure]:
    """As `tracking.pictures` has them of one run, and what only several can show."""
    if not board.settings:
        return

    def figure(name: str, title: str, chart: Any) -> Figure:
        return Figure(name, title, figures.specification(chart))

    if len(board.settings) > 1:
        yield figure("settings", "Measures of each setting", figures.settings(_long(board)))
    for option in board.swept if len(board.swept) > 1 else ():
        chart = figures.measure_by_option(board.by_option(option), option)
        yield figure(f"by_{option}", f"Measures against {option}", chart)
    if len(board.swept) == 2:
        x, y = board.swept
        cells = board.by_option(x).rename({"option": "x"}).with_columns(y=pl.col("others").str.strip_prefix(f"{y}="))
        yield figure("heat_map", f"{x} and {y}", figures.heat_map(cells, x, y))
    if len(board.swept) > 2:
        chart = figures.parallel_coordinates(board.coordinates(), board.measures[0])
        yield figure("parallel_coordinates", "All options and measures", chart)
    if board.differences and board.baseline is not None:
        frame = pl.DataFrame(board.differences).with_columns(pl.col("setting").cast(_all(board)))
        chart = figures.paired_differences(frame, board.baseline)
        yield figure("paired_differences", f"Difference from {board.baseline}", chart)
    if (curves := board.table("metrics")) is not None:
        yield figure("learning_curves", "Learning curves", figures.learning_curves(curves))
    if (positions := board.table("positions")) is not None:
        yield figure("positions", "By position", figures.positions(positions))
    sampled = board.sampled().filter(pl.col("temperature") > 0)
    exact = board.table("temperatures")
    if exact is None:
        exact = sampled.select("setting", "seed").clear().with_columns(tables.table("temperatures"))
    chart = figures.temperatures(exact.filter(pl.col("temperature") > 0), sampled)
    yield figure("temperatures", "Validity and coverage against temperature", chart)
    if (sentences := board.table("sentences")) is not None:
        for known in ("yes", "no"):
            if not (mine := sentences.filter(exact=known)).is_empty():
                title = "Probability of each sentence" if known == "yes" else "Drawn sentences, log p against log q"
                yield figure(f"sentences_{known}", title, figures.sentences(mine, known == "yes"))
    if (maps := board.table("attention", seeds=1)) is not None:
        yield figure("attention", "Attention, first seed", figures.attention(maps))
    if (words := board.table("next_words", seeds=1)) is not None:
        yield figure("next_words", "Next word, first seed", figures.next_words(words))


def _long(board: Board) -> pl.DataFrame:
    return sweep.measured(board.comparison, board.measures).with_columns(pl.col("setting").cast(_all(board)))


def _all(board: Board) -> pl.Enum:
    return pl.Enum([setting.label for setting in board.comparison.settings])


# ---- tables --------------------------------------------------------------------------------------------------------


def _settings(board: Board) -> list[tuple[str, int, list[str]]]:
    """Each setting's name, number of seeds, and mean ± half of the interval of each measure."""
    return [
        (
            s.label,
            len(s.seeds),
            [str(s.measures[m]).replace("\n", " ") if m in s.measures else "–" for m in board.measures],
        )
        for s in board.comparison.settings
    ]


def _paired(board: Board) -> list[tuple[str, int, list[str]]]:
    """Each other setting's name, number of pairs, and difference in each measure with its interval."""
    rows: dict[str, dict[str, Difference]] = {}
    for each in board.differences:
        rows.setdefault(each.setting, {})[each.measure] = each

    def cell(each: Difference | None) -> str:
        if each is None:
            return "–"
        return f"{each.mean:+.3g}" + ("" if each.low is None else f"\n{each.low:+.3g} … {each.high:+.3g}")

    return [
        (label, max(each.seeds for each in found.values()), [cell(found.get(m)) for m in board.measures])
        for label, found in rows.items()
    ]


def _runs(board: Board, differing: Sequence[str]) -> pl.DataFrame:
    """A row for each run: numbers of finished ones alone; of the others how far they got."""
    shown = [option for option in differing if sweep.is_setting(option) and option != "language.grammar"]
    rows: list[dict[str, Any]] = []
    for run in board.runs:
        rows.append(
            {
                "run": run.folder.name,
                "status": run.status,
                **{option: written(run.options.get(option)) for option in shown},
                "seed": run.options.get("seed"),
                **{m: _short(run.metrics.get(m)) if run.finished else None for m in board.measures},
                "step": _step(run),
                "seconds": run.seconds if run.finished else None,
                "what happened": "" if run.finished else _happened(run),
            }
        )
    return pl.DataFrame(rows, infer_schema_length=None)


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def _step(run: Run) -> int | None:
    try:
        metrics = tables.read(run.folder, "metrics")
    except ValueError:
        if run.finished:
            raise
        return None  # it is being written, or was when it stopped
    return None if metrics is None or metrics.is_empty() else metrics["step"].max()  # type: ignore[return-value]


def _happened(run: Run) -> str:
    if run.status == "running":
        return f"of {run.options.get('trainer.max_steps')} steps"
    return next(iter((run.error or "no result kept").splitlines()), "")


def _samples(board: Board) -> tuple[pl.DataFrame | None, int]:
    """Generated sentences of each setting's first seed, with the first word that is wrong underlined; of how many."""
    found = board.table("samples", seeds=1)
    if found is None:
        return None, 0
    shown = found.head(SHOWN_SAMPLES)
    return pl.DataFrame(
        {
            "setting": [str(escape(setting)) for setting in shown["setting"]],
            "seed": shown["seed"],
            "temperature": shown["temperature"],
            "valid": ["✓" if valid == "yes" else "✗" for valid in shown["valid"]],
            "sentence": [marked_up(text, wrong) for text, wrong in shown.select("text", "wrong_at").iter_rows()],
            "log p, language": [_short(v) for v in shown["log_prob_language"]],
            "log q, model": [_short(v) for v in shown["log_prob_model"]],
        }
    ), found.height


def marked_up(text: str, wrong_at: int | None) -> str:
    """The sentence as HTML; underlined the word at `wrong_at`, or the end where that is what cannot stand there."""
    words: list[Markup] = [escape(word) for word in text.split()]
    if wrong_at is not None:
        words += [escape(SHOWN_END)] * (wrong_at >= len(words))
        at = min(wrong_at, len(words) - 1)
        words[at] = Markup("<u class='wrong'>{}</u>").format(words[at])
    return str(Markup(" ").join(words)) or "(empty)"


def _configurations(runs: Sequence[Run]) -> tuple[dict[str, Any], list[str]]:
    """The options that all runs have in common, and the names of the others."""
    names = [n for n in dict.fromkeys(name for run in runs for name in run.options) if n not in _NO_DIFFERENCE]
    differing = [name for name in names if len({written(run.options.get(name)) for run in runs}) > 1]
    return {name: runs[0].options.get(name) for name in names if name not in differing}, differing


def _differences(runs: Sequence[Run], differing: Sequence[str]) -> pl.DataFrame:
    def said(run: Run) -> str:
        return ", ".join(f"{name}={' '.join(written(run.options.get(name)).split())}" for name in differing)

    return pl.DataFrame({"run": [run.folder.name for run in runs], "differs in": [said(run) for run in runs]})
