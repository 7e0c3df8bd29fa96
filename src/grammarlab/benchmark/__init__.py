"""Paired timings in one process: ratios with their spread, never a time alone."""

from __future__ import annotations

import json
import platform
import secrets
import time
from pathlib import Path

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from grammarlab import report
from grammarlab.benchmark.cache import cache_cases
from grammarlab.benchmark.generation import generation_cases
from grammarlab.benchmark.step import step_cases
from grammarlab.benchmark.truth import truth_cases
from grammarlab.config import BenchmarkConfig, BenchmarkName
from grammarlab.record import versions

__all__ = ["cache_cases", "generation_cases", "run", "step_cases", "truth_cases"]


def run(config: BenchmarkConfig) -> Path:
    """Measure, print the table, write `benchmark.json` into a folder of its own and print that last."""
    torch.set_num_threads(config.torch_threads)
    measured = {
        BenchmarkName.step: step_cases,
        BenchmarkName.truth: truth_cases,
        BenchmarkName.generation: generation_cases,
        BenchmarkName.cache: cache_cases,
    }[config.benchmark](config)
    cases = []
    with Console(stderr=True).status("measuring") as status:
        for case in measured:
            cases.append(case)
            status.update(f"{len(cases)} measured, the last: {case['case']}: {case['ratio']:.3f}")
    folder = Path("outputs/benchmarks") / f"{time.strftime('%Y-%m-%d_%H-%M-%S')}-{secrets.token_hex(2)}"
    folder.mkdir(parents=True)
    content = {
        "benchmark": config.benchmark.value,
        "machine": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "versions": versions(),
        "threads": config.torch_threads,
        "repeats": config.repeats,
        **({"steps": config.steps} if config.benchmark == BenchmarkName.step else {}),
        "cases": cases,
    }
    (folder / "benchmark.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    block = f" blocks of {config.steps} steps" if config.benchmark == BenchmarkName.step else " repeats at most"
    caption = (
        f"{config.repeats}{block}, the two taken in turn, {config.torch_threads} thread(s); ratio: first to second"
    )
    table = Table(box=box.SIMPLE_HEAD, caption=caption, caption_justify="left")
    for heading in ("case", "ratio (median)", "least", "most", "equal"):
        table.add_column(heading, justify="left" if heading == "case" else "right")
    for case in cases:
        low, high = case["spread"]
        table.add_row(case["case"], f"{case['ratio']:.3f}", f"{low:.3f}", f"{high:.3f}", str(case["equal"]).lower())
    report.show(table)
    print(folder)
    return folder
