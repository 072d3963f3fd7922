"""Benchmarks and examples run, and what the README quotes is what they wrote."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run(*words: str) -> str:
    # Both, so that what runs is this tree also where another one is installed.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
    done = subprocess.run([sys.executable, *words], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


BENCHMARKS = [
    "papers.private_fedrep",
    "papers.fedpower",
    "papers.centaur",
    "papers.centaur_linear",
    "families",
    "speed.round",
    "speed.gram",
    "speed.neural",
]


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_runs(name: str) -> None:
    assert "|---|" in run("-m", f"benchmarks.{name}", "--quick")


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_every_example_runs(path: Path) -> None:
    assert run(str(path))


def test_the_readme_quotes_the_results() -> None:
    run("-m", "benchmarks.readme", "--check")
