"""Queries have not become twice as slow: ratios of processor times to reading the rows once, measured three times."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from benchmarks.speed.floors import SMALL, measured

KEPT = Path(__file__).parents[1] / "benchmarks" / "results" / "speed_floors.json"
WORSE = 2.0


def test_nothing_takes_twice_its_kept_ratio_to_the_floor() -> None:
    """The least of three ratios is compared, so that a busy machine alone does not fail.

    Nor does other hardware, on which reading is cheaper for all of them alike: what is twice as slow as kept must also
    be twice as slow as the others have become.
    """
    kept = json.loads(KEPT.read_text(encoding="utf-8"))["small"]
    found = [measured(SMALL, np.float64, repeats=1) for _ in range(3)]
    assert set(found[0]) == set(kept), "Run python -m benchmarks.speed.floors."
    change = {name: min(lines[name]["ratio"] for lines in found) / kept[name] for name in kept}
    usual = max(1.0, float(np.median(list(change.values()))))
    slower = {name: f"{times:.1f} times" for name, times in change.items() if times > WORSE * usual}
    assert not slower, slower
