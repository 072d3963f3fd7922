"""Queries have not become twice as slow: ratios of processor times to reading the rows once, measured three times."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from benchmarks.speed.floors import SMALL, measured

KEPT = Path(__file__).parents[1] / "benchmarks" / "results" / "speed_floors.json"
WORSE = 2.0


def test_nothing_takes_twice_its_kept_ratio_to_the_floor() -> None:
    """The least of three ratios is compared, so that a busy machine alone does not fail."""
    kept = json.loads(KEPT.read_text(encoding="utf-8"))["small"]
    found = [measured(SMALL, np.float64, repeats=1) for _ in range(3)]
    assert set(found[0]) == set(kept), "Run python -m benchmarks.speed.floors."
    ratios = {name: min(lines[name]["ratio"] for lines in found) for name in kept}
    slower = {
        name: f"{ratio:.1f}, kept {kept[name]:.1f}" for name, ratio in ratios.items() if ratio > WORSE * kept[name]
    }
    assert not slower, slower
