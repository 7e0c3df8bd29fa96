"""The judge does not depend on the judged: a language needs neither torch nor the frameworks, and is there at once."""

import os
import subprocess
import sys
from pathlib import Path

import grammarlab

HEAVY = ("torch", "lightning", "pytorch_lightning", "torchmetrics", "hydra", "omegaconf", "wandb", "matplotlib")


def test_a_language_loads_without_torch_lightning_or_hydra() -> None:
    code = (
        "import sys; from grammarlab.language import load; captions = load('captions'); "
        "import numpy; captions.sample(3, numpy.random.default_rng(0)); captions.entropy(); "
        "print(*sorted(name.split('.')[0] for name in sys.modules))"
    )
    source = str(Path(grammarlab.__file__).parents[1])
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": source},
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = set(run.stdout.split())
    assert {"grammarlab", "numpy"} <= loaded  # it did run
    assert loaded.isdisjoint(HEAVY)
