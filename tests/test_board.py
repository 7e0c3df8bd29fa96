"""The page of many runs, in a real browser."""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import playwright.sync_api as playwright
import polars as pl
import pytest
import yaml
from conftest import Ended, small_config

from grammarlab import board, run, sweep, tables
from grammarlab.board.page import marked_up
from grammarlab.config import EvaluationConfig, LanguageConfig, ModelConfig
from grammarlab.record import Hold, Record, is_running

WORDS = """S -> '<b>bold</b>' X [1/2] | '&amp;' X [1/4] | '"' X [1/4]
X -> 'é' [1/2] | '</script>' [1/2]"""
LANGUAGE = LanguageConfig(name="<i>&\"'é", start="S", grammar=WORDS)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two settings of two seeds that finished, one run that failed and one that was interrupted."""
    folder = tmp_path_factory.mktemp("sweeps") / "a <sweep> & more"
    for job, (causal, seed) in enumerate((causal, seed) for causal in (True, False) for seed in (1, 2)):
        config = small_config(language=LANGUAGE, seed=seed, model=ModelConfig(width=12, heads=3, causal=causal))
        run.train(config, folder / str(job), progress_bar=False, on_note=lambda note: None)
    for job, (status, error) in enumerate(
        (("failed", "ValueError: <not> a number"), ("interrupted", "SIGINT")), start=4
    ):
        shutil.copytree(folder / "0", folder / str(job))
        path = folder / str(job) / "results.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "status": status, "error": error}))
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[playwright.Browser]:
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("no chromium is installed: `make test` installs Debian's where it may")
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def opened(
    browser: playwright.Browser, runs: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[playwright.Page]:
    """The page, as it is opened from a disk; that nothing was wrong is looked at when all tests are through."""
    path = tmp_path_factory.mktemp("board") / "board.html"
    board.write([runs], path)
    page, said, asked = browser.new_page(viewport={"width": 1300, "height": 900}), [], []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(path.as_uri())
    page.wait_for_function(
        "() => [...document.querySelectorAll('[id^=figure-]')].every(figure => figure.querySelector('svg.marks'))"
    )
    yield page
    assert said == []
    assert [url for url in asked if not url.startswith(("data:", "blob:"))] == [path.as_uri()]


def rows(page: playwright.Page, table: str) -> list[dict[str, str]]:
    """The visible rows of a table by column."""
    names = [cell.inner_text().strip() for cell in page.locator(f"#{table}_wrapper .dt-scroll-head th").all()]
    body = page.locator(f"#{table} tbody tr").all()
    return [dict(zip(names, [cell.inner_text() for cell in row.locator("td").all()], strict=True)) for row in body]


def test_the_states_of_all_runs_are_told(opened: playwright.Page) -> None:
    assert opened.locator("h1").inner_text() == "a <sweep> & more"
    assert opened.locator("#states .state").all_inner_texts() == ["4 finished", "1 failed", "1 interrupted"]
    by_run = {row["run"]: row for row in rows(opened, "runs")}
    assert [by_run[str(i)]["status"] for i in range(6)] == ["finished"] * 4 + ["failed", "interrupted"]
    assert by_run["4"]["truth/kl"] == by_run["5"]["truth/kl"] == ""
    assert by_run["4"]["what happened"] == "ValueError: <not> a number"


def test_the_means_are_those_of_the_finished_runs(opened: playwright.Page, runs: Path) -> None:
    comparison = sweep.compare(sweep.read_runs([runs]))
    texts = [row.locator("td").all_inner_texts() for row in opened.locator("#settings tbody tr").all()]
    column = opened.locator("#settings th").all_inner_texts().index("truth/kl")
    assert [(cells[0], cells[1], cells[column]) for cells in texts] == [
        (s.label, "2", str(s.measures["truth/kl"]).replace("\n", " ")) for s in comparison.settings
    ]
    (other,) = opened.locator("#differences tbody tr").all()
    assert other.locator("td").first.inner_text() == "model.causal=false"


def test_the_table_sorts(opened: playwright.Page) -> None:
    column = opened.locator("#runs_wrapper .dt-scroll-head th", has_text="truth/kl")
    orders = []
    for _ in range(2):
        column.click()
        orders.append([float(row["truth/kl"]) for row in rows(opened, "runs") if row["truth/kl"]])
    assert orders[0] == sorted(orders[0]) and orders[1] == orders[0][::-1] and len(set(orders[0])) > 1


def test_the_table_filters(opened: playwright.Page) -> None:
    search = opened.locator("#runs_wrapper input[type=search]")
    search.fill("interrupted")
    assert [row["run"] for row in rows(opened, "runs")] == ["5"]
    search.fill("")
    assert len(rows(opened, "runs")) == 6


def test_a_figure_responds_to_hover(opened: playwright.Page) -> None:
    marks = opened.locator("#figure-learning_curves .mark-symbol path[aria-label^='step']")
    marks.last.hover(force=True)  # others may lie on top of it: they are of the same figure
    tip = opened.locator("#vg-tooltip-element.visible")
    assert re.search(r"setting\s+model\.causal=(true|false)\s+step\s+\d", tip.inner_text())
    opened.mouse.move(0, 0)


def test_a_figure_zooms(opened: playwright.Page) -> None:
    figure = opened.locator("#figure-learning_curves")
    figure.scroll_into_view_if_needed()

    def labels() -> list[str]:
        return figure.locator(".role-axis-label text").all_text_contents()

    before, box = labels(), figure.locator("svg.marks").bounding_box()
    assert box is not None
    opened.mouse.move(box["x"] + 150, box["y"] + 120)
    opened.mouse.wheel(0, -600)
    opened.wait_for_function(
        "before => JSON.stringify([...document.querySelectorAll('#figure-learning_curves .role-axis-label text')]"
        ".map(e => e.textContent)) != JSON.stringify(before)",
        arg=before,
    )
    assert labels() != before


def test_the_setting_whose_attention_is_shown_is_chosen(opened: playwright.Page) -> None:
    """Of a model without a causal mask nothing is hidden."""
    figure = opened.locator("#figure-attention")
    assert figure.locator("text", has_text="×").count() > 1
    figure.locator("select").select_option("model.causal=false")
    opened.wait_for_function(
        "![...document.querySelectorAll('#figure-attention .mark-text text')].some(e => e.textContent == '×')"
    )


def test_words_are_shown_as_they_are(opened: playwright.Page, runs: Path) -> None:
    """None of them is taken for a mark, anywhere on the page."""
    terminals = {"<b>bold</b>", "&amp;", '"', "é", "</script>"}
    seen = {word for row in rows(opened, "samples") for word in row["sentence"].split()}
    assert seen & {"<b>bold</b>", "&amp;"} and seen <= terminals | {"(end)", "(empty)"}
    assert opened.locator("td b, td script, h1 sweep").count() == 0
    words = opened.locator("#figure-next_words .role-axis-label text").all_text_contents()
    assert set(words) >= {"<b>bold</b>", "</script>", "é"}


def test_the_first_wrong_word_is_underlined(opened: playwright.Page, runs: Path) -> None:
    opened.locator("#samples_wrapper select").select_option("1000")
    content = pl.concat([tables.read(runs / job, "samples") for job in ("0", "2")])
    expected = []
    for text, wrong_at in content.select("text", "wrong_at").iter_rows():
        if wrong_at is not None:
            expected.append([*text.split(), "(end)"][wrong_at])
    assert opened.locator("#samples u.wrong").all_inner_texts() == expected
    assert [row["valid"] for row in rows(opened, "samples")] == ["✓" if v == "yes" else "✗" for v in content["valid"]]


def test_configurations_are_differences_from_what_is_common(opened: playwright.Page) -> None:
    said = {row["run"]: row["differs in"] for row in rows(opened, "configurations")}
    assert said["0"] == "seed=1, model.causal=true" and said["3"] == "seed=2, model.causal=false"
    common = yaml.safe_load(opened.locator("details pre").text_content() or "")
    assert common["model.width"] == 12 and common["language.grammar"] == WORDS
    assert "seed" not in common and "model.causal" not in common


@pytest.mark.parametrize(
    ("text", "wrong_at", "expected"),
    [
        ("a b", None, "a b"),
        ("a <b> &", 1, "a <u class='wrong'>&lt;b&gt;</u> &amp;"),
        ("a b", 2, "a b <u class='wrong'>(end)</u>"),
        ("", 0, "<u class='wrong'>(end)</u>"),
        ("", None, "(empty)"),
    ],
)
def test_a_sentence_as_html(text: str, wrong_at: int | None, expected: str) -> None:
    assert marked_up(text, wrong_at) == expected


# ---- without a browser ---------------------------------------------------------------------------------------------


def test_many_settings_are_all_counted_and_some_drawn(runs: Path, tmp_path: Path) -> None:
    for width in range(13):
        copy = tmp_path / "many" / str(width)
        shutil.copytree(runs / "0", copy, ignore=shutil.ignore_patterns("checkpoints"))
        config = yaml.safe_load((copy / "config.yaml").read_text())
        config["model"]["width"] = 3 * (width + 1)
        (copy / "config.yaml").write_text(yaml.safe_dump(config))
    gathered = board.gather([tmp_path / "many"])
    assert (len(gathered.settings), len(gathered.comparison.settings), gathered.swept) == (12, 13, ["model.width"])
    assert "first 12 of 13 settings" in board.render(gathered)


def test_options_that_say_the_same_count_as_one(runs: Path, tmp_path: Path) -> None:
    for job in range(4):
        shutil.copytree(runs / "0", tmp_path / str(job))
        path = tmp_path / str(job) / "config.yaml"
        config = yaml.safe_load(path.read_text())
        config["model"] |= {"width": 8 * (1 + job // 2), "heads": 2 * (1 + job // 2), "depth": 1 + job % 2}
        path.write_text(yaml.safe_dump(config))
    gathered = board.gather([tmp_path])
    assert len(gathered.comparison.settings[0].options) == 3
    (first,) = {*gathered.swept} - {"model.depth"}
    assert len(gathered.swept) == 2 and "model.depth" in gathered.swept
    others = gathered.by_option("model.depth")["others"].unique().sort().to_list()
    assert others == [f"{first}={value}" for value in sorted(s.options[first] for s in gathered.settings)[::2]]


def test_a_folder_is_running_as_long_as_it_is_held(tmp_path: Path) -> None:
    assert not is_running(tmp_path) and not is_running(tmp_path / "none")
    first, second = Hold(tmp_path), Hold(tmp_path)
    first.close()
    assert is_running(tmp_path)
    second.close()
    assert not is_running(tmp_path)


def test_a_page_follows_the_runs_and_stops_with_them(runs: Path, tmp_path: Path) -> None:
    folder, path = tmp_path / "sweep", tmp_path / "page.html"
    folder.mkdir()
    hold = Hold(folder)
    seen = board.write([folder], path, refresh=5)
    assert seen.running and not path.exists(), "the first job has not begun"
    record = Record(folder / "0", None, "zero") if (folder / "0").mkdir() is None else None
    assert record is not None
    seen = board.write([folder], path, refresh=5, seen=seen)
    text = path.read_text()
    assert "1 running" in text and 'http-equiv="refresh" content="5"' in text and "No run is finished yet" in text
    path.unlink()
    assert board.write([folder], path, refresh=5, seen=seen) == seen and not path.exists(), "nothing has changed"
    (folder / "0" / "results.json").write_text("")  # for a moment, while it is written
    assert board.write([folder], path, refresh=5, seen=seen) == seen
    record.write("failed", "ValueError: no")
    hold.close()
    seen = board.write([folder], path, refresh=5, seen=seen)
    assert not seen.running and "1 failed" in path.read_text() and "http-equiv" not in path.read_text()


def test_a_running_run_enters_no_mean(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "5", tmp_path / "5")
    hold = Hold(tmp_path / "5")
    assert sweep.load(tmp_path)["status"].to_list() == ["running"]
    assert sweep.compare(sweep.read_runs([tmp_path])).settings == []
    hold.close()
    assert sweep.load(tmp_path)["status"].to_list() == ["interrupted"]


def test_the_command_writes_the_page_and_says_where(command: Callable[..., Ended], runs: Path, tmp_path: Path) -> None:
    ended = command("board", runs / "0", runs / "1", "into=sub/page.html", "watch=true")
    assert (ended.status, ended.out.strip()) == (0, "sub/page.html")
    assert "<!DOCTYPE html>" in (tmp_path / "sub" / "page.html").read_text()
    ended = command("board", "--help")
    assert ended.status == 0 and "watch=true" in ended.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "board.py: name at least one folder"),
        (["none"], "none: no such folder"),
        (["."], ".: holds no run"),
        (["RUNS", "RUNS"], "into: must be given with several folders"),
        (["RUNS", "into=page.txt"], "into=page.txt: must be a file named ….html"),
        (["RUNS", "interval=0"], "interval=0.0: must be from 0.1 to 86400 seconds"),
        (["RUNS", "watch=maybe"], "must be true or false"),
        (["RUNS", "wach=true"], "options are: baseline, into, watch, interval"),
        (["RUNS", "baseline=x"], "baseline=x: no such setting; there are model.causal=true; model.causal=false"),
        (["RUNS", "into=/proc/page.html"], "/proc/page.html"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    command: Callable[..., Ended], runs: Path, arguments: list[str], said: str
) -> None:
    ended = command("board", *(str(runs) if argument == "RUNS" else argument for argument in arguments))
    assert ended.status == 1
    assert ended.err.startswith("error: ") and said in ended.err and len(ended.err.strip().splitlines()) == 1


def test_a_damaged_table_is_named(command: Callable[..., Ended], runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "0", tmp_path / "0")
    (tmp_path / "0" / "positions.csv").write_text('position,"reached\nx,y')
    ended = command("board", tmp_path / "0")
    assert ended.status == 1 and "positions.csv: cannot be read" in ended.err


def test_a_single_run_of_a_language_that_is_not_written_out(tmp_path: Path) -> None:
    endless = LanguageConfig(name="endless", start="S", grammar="S -> 'a' S [1/2] | 'b' [1/2]")
    config = small_config(language=endless, evaluation=EvaluationConfig(enumeration_limit=0, samples=50))
    run.train(config, tmp_path / "0", progress_bar=False, on_note=lambda note: None)
    gathered = board.gather([tmp_path / "0"])
    assert gathered.table("temperatures") is None and gathered.swept == []
    assert "Drawn sentences" in board.render(gathered)
