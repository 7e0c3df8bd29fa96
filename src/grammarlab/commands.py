"""The commands other than training: their options, what they call, what they print."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from grammarlab.cli import errors_said, heavy_imports, print_unfinished, relative
from grammarlab.config import (
    BenchmarkConfig,
    BoardConfig,
    CompareConfig,
    ConfigError,
    DashboardConfig,
    EvaluateConfig,
    ExportConfig,
    GenerateConfig,
    LanguageCheckConfig,
    language_inline,
    read_text,
)
from grammarlab.options import reason, to_config

T = TypeVar("T")


@errors_said(EvaluateConfig)
def evaluate_job(config: DictConfig) -> None:
    options = to_config(config, EvaluateConfig)
    with heavy_imports():
        from grammarlab import report, run
    trained, metrics = run.evaluate(options)
    if options.json:
        print(json.dumps(metrics))
        return
    title = f"{options.checkpoint}: {trained.language.name}, seed {trained.seed}"
    report.show(report.summary(metrics, trained.generation.temperatures, title))


@errors_said(GenerateConfig)
def generate_job(config: DictConfig) -> None:
    options = to_config(config, GenerateConfig)
    with heavy_imports():
        from grammarlab import terminal
        from grammarlab.prompting import Prompting
    prompting = Prompting(options)
    if options.interactive:
        terminal.interact(prompting, options.prompt)
    elif options.json:
        terminal.print_json(prompting)
    elif options.stream:
        terminal.show_stream(prompting)
    else:
        terminal.show_samples(prompting, constrained=options.constrained)


@errors_said(ExportConfig)
def export_job(config: DictConfig) -> None:
    options = to_config(config, ExportConfig)
    with heavy_imports():
        from grammarlab import parts
    folder = parts.export(options)
    print("in transformers: AutoModelForCausalLM.from_pretrained(FOLDER), AutoTokenizer.from_pretrained(FOLDER)")
    print(relative(folder))


@errors_said(LanguageCheckConfig)
def language_job(config: DictConfig) -> None:
    options = to_config(config, LanguageCheckConfig)
    with heavy_imports():
        from grammarlab import report, survey
    language = options.language
    if options.grammar is not None:
        text = read_text("grammar", options.grammar)
        name = Path(options.grammar).stem
        language = dataclasses.replace(
            language, name=name, start=options.start, grammar=text, file=None, generator=None
        )
    language = language_inline(language)
    try:
        result = survey.survey(language, options.samples, options.seed)
    except ConfigError as error:
        for fault in str(error).splitlines():  # every one that its grammar has
            print(f"error: {fault}", file=sys.stderr)
        raise SystemExit(1) from None
    if options.json:
        print(json.dumps(result.facts, ensure_ascii=False))
        return
    path = Path("outputs/languages") / f"{result.name}-{result.facts['start']}.png"
    survey.save_figure(result, path)
    report.show(survey.render(result))
    print(path)


@errors_said(DashboardConfig)
def dashboard_job(config: DictConfig) -> None:
    options = to_config(config, DashboardConfig)
    with heavy_imports():
        from grammarlab import dashboard
    print(relative(dashboard.write(options)) if options.dry_run else dashboard.save(options))


@errors_said(BenchmarkConfig)
def benchmark_job(config: DictConfig) -> None:
    options = to_config(config, BenchmarkConfig)
    with heavy_imports():
        from grammarlab import benchmark
    benchmark.run(options)


def _folders_and_options(arguments: Sequence[str], schema: type[T], script: str) -> tuple[list[str], T]:
    """Folders stand alone, options as `name=value`: no option of a folder's name needs Hydra's grammar."""
    paths = [argument for argument in arguments if "=" not in argument or Path(argument).exists()]
    options = [argument for argument in arguments if argument not in paths]
    names = ", ".join(field.name for field in dataclasses.fields(schema))  # type: ignore[arg-type]
    try:
        merged = OmegaConf.merge(OmegaConf.structured(schema), OmegaConf.from_dotlist(options))
    except OmegaConfBaseException as error:
        raise ConfigError(f"{' '.join(options)}: {reason(error)}; options are: {names}") from None
    assert isinstance(merged, DictConfig)
    config = to_config(merged, schema)
    if not paths:
        raise ConfigError(f"{script}: name at least one folder, as in: python src/{script} outputs/sweeps/…")
    return paths, config


def compare_command(arguments: Sequence[str], usage: str | None) -> None:
    if {"-h", "--help"} & set(arguments):
        print((usage or "").strip())
        return
    paths, config = _folders_and_options(arguments, CompareConfig, "compare.py")
    if len(paths) > 1 and config.into is None:
        raise ConfigError("into: must be given with several folders: into=FOLDER is where the table is written")
    with heavy_imports():
        from rich.console import Console

        from grammarlab import figures, report, sweep
    try:
        comparison = sweep.compare(sweep.read_runs([Path(path) for path in paths]))
    except ValueError as error:
        raise ConfigError(str(error)) from None
    known = {name for setting in comparison.settings for name in setting.measures}
    measures = config.measures or [name for name in sweep.MEASURES if name in known]
    if unknown := [name for name in measures if name not in known]:
        raise ConfigError(
            f"measures={unknown[0]}: no finished run has it; there are {', '.join(sorted(known)) or 'none'}"
        )
    try:
        differences = sweep.differences(comparison, config.baseline, measures) if config.baseline else []
    except ValueError as error:
        raise ConfigError(str(error)) from None
    console = Console()
    folder = Path(config.into or paths[0])
    written = [folder / "compare.csv", folder / "compare.png"]
    if comparison.settings:
        folder.mkdir(parents=True, exist_ok=True)
        report.show(sweep.table(comparison, measures))
        sweep.write_csv(comparison, written[0])
        figures.save(figures.settings(sweep.measured(comparison, measures)), written[1])
        if config.baseline:
            report.show(sweep.difference_table(differences, config.baseline))
            written.append(folder / "differences.csv")
            sweep.write_differences(differences, written[-1])
    print_unfinished(console, comparison)
    if not comparison.settings:
        raise ConfigError(f"{' '.join(paths)}: no run there is finished")
    console.print("\n".join(map(str, written)), highlight=False, soft_wrap=True)


def board_command(arguments: Sequence[str], usage: str | None) -> None:
    if {"-h", "--help"} & set(arguments):
        print((usage or "").strip())
        return
    paths, config = _folders_and_options(arguments, BoardConfig, "board.py")
    if len(paths) > 1 and config.into is None:
        raise ConfigError("into: must be given with several folders: into=FILE.html is where the page is written")
    path = Path(config.into or Path(paths[0]) / "board.html")
    with heavy_imports():
        from grammarlab import board
    folders = [Path(each) for each in paths]
    refresh = config.interval if config.watch else None
    seen: board.Seen | None = None
    try:
        while seen is None or (config.watch and seen.running):
            if seen is not None:
                time.sleep(config.interval)
            before, seen = seen, board.write(folders, path, baseline=config.baseline, refresh=refresh, seen=seen)
            if seen.stamp and not (before and before.stamp):
                print(path, flush=True)
    except ValueError as error:
        raise ConfigError(str(error)) from None
