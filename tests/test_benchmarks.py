"""Benchmarks and examples run, and what the README quotes is what they wrote."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]


def run(*words: str) -> str:
    # Both, so that what runs is this tree also where another one is installed.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
    done = subprocess.run([sys.executable, *words], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "name",
    [
        "papers.private_fedrep",
        "papers.fedpower",
        "papers.fedpower_tables",
        "papers.fedpower_connect4",
        "papers.pca",
        "papers.fedpower_figures",
        "papers.fedpower_routes",
        "papers.jester",
        "papers.theory",
        "papers.centaur",
        "papers.centaur_linear",
        "papers.centaur_starts",
        "papers.centaur_allocation",
        "papers.centaur_table1",
        "papers.centaur_writers",
        "papers.centaur_names",
        "papers.centaur_rounds",
        "papers.low_rank_sparse",
        "papers.neural_low_rank_sparse",
        "papers.quirks",
        "papers.sparse_values",
        "papers.margin",
        "adapters",
        "audit",
        "ledger",
        "families",
        "few_users",
        "late_starts",
        "features",
        "plan",
        "ratings",
        "speed.round",
        "speed.gram",
        "speed.low_rank_sparse",
        "papers.trace_regression",
        "papers.trace_attack",
        "papers.trace_designs",
        "speed.trace",
        "speed.cuda",
        "speed.way_in",
        "speed.peers",
        "speed.cold_start",
        "speed.modules",
        "speed.neural",
        "speed.compiled_networks",
        "neural_conformance",
    ],
)
def test_every_benchmark_runs(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Here, not in processes of their own: libraries are imported and kernels loaded once."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", [name, "--quick"])
    torch = sys.modules.get("torch")
    threads = torch.get_num_threads() if torch else 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        importlib.import_module(f"benchmarks.{name}").main()
    if torch:
        torch.set_num_threads(threads)  # a benchmark's choice would slow all tests after it
    assert "|---|" in capsys.readouterr().out


def test_the_benchmark_of_engines_runs() -> None:
    assert "|---|" in run("-m", "benchmarks.speed.engines", "--quick")


@pytest.mark.parametrize("name", ["two_sites"])
def test_an_example_that_starts_processes_runs(name: str) -> None:
    """The others run in one process: tests/test_site.py."""
    assert run(f"examples/{name}.py")


def test_the_readme_quotes_the_results() -> None:
    run("-m", "benchmarks.readme", "--check")


def test_the_kept_results_of_fedpower_are_as_good_as_promised() -> None:
    data, tables = (
        json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text(encoding="utf-8"))
        for name in ("fedpower", "fedpower_tables")
    )
    printed = json.loads((ROOT / "benchmarks" / "papers" / "printed.json").read_text(encoding="utf-8"))["FedPower"]
    for name, found in tables["table2"].items():
        assert np.mean(found["OPT, as theirs"]) <= 1.5 * printed["table2"][name]["OPT"][0]
    for found in tables["table3"].values():
        assert np.mean(found["inf"]) <= 1e-4
    promised = {"a9a": 0.05, "covtype": 0.02, "mnist": 0.065, "connect4": 0.03}
    for name in promised:
        assert data["true_epsilon"][name]["1"]["tacitly"] <= promised[name]
        for line in data["true_epsilon"][name].values():
            assert line["tacitly"] <= min(error for method, error in line.items() if not method.startswith("tacitly"))
