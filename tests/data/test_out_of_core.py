"""A cohort on disk, larger than the memory a fit may use."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

PROGRAM = """
import sys, threading, time
import numpy as np
import tacitly
import tacitly.methods

def anonymous():
    with open("/proc/self/status") as status:
        return int(next(line for line in status if line.startswith("RssAnon")).split()[1]) * 1024

warm = tacitly.datasets.make_shared_subspace(1100, 16, 2, 8, random_state=0, dtype=np.float32)
tacitly.PrivateFedRep(rank=2, epsilon=1.0).fit(warm.X, warm.y, warm.users)
cohort = tacitly.Cohort.open(sys.argv[1])
before, peak, stop = anonymous(), [0], threading.Event()
def watch():
    while not stop.is_set():
        peak[0] = max(peak[0], anonymous())
        time.sleep(0.002)
thread = threading.Thread(target=watch); thread.start()
model = tacitly.PrivateFedRep(rank=2, epsilon=1.0).fit(cohort)
stop.set(); thread.join()
print(cohort.X.nbytes, peak[0] - before, model.certificate_.certified)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_fit_on_a_memory_map_needs_a_fraction_of_the_data(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    folder = tmp_path / "cohort"
    folder.mkdir()
    from tacitly.data.cohort import Cohort

    n, m, d = 40_000, 40, 32
    X = rng.standard_normal((n * m, d), dtype=np.float32)
    y = X[:, 0] + rng.standard_normal(n * m, dtype=np.float32)
    Cohort.from_offsets(X, y, np.arange(0, n * m + 1, m)).save(tmp_path / "mapped")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "mapped")], capture_output=True, text=True, check=True
    )
    size, growth, certified = done.stdout.split()
    assert certified == "True"
    assert int(growth) < 0.35 * int(size)  # rows projected to a few directions are held, and heads' statistics


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_components_of_a_memory_map_need_a_fraction_of_the_data(tmp_path: Path) -> None:
    from tacitly.data.cohort import Cohort

    X = np.random.default_rng(0).standard_normal((4_000_000, 32), dtype=np.float32)
    Cohort.from_offsets(X, None, np.array([0, len(X)])).save(tmp_path / "mapped")
    program = PROGRAM.replace("tacitly.PrivateFedRep(rank=2, epsilon=1.0).fit(warm.X, warm.y, warm.users)", WARM)
    program = program.replace("tacitly.PrivateFedRep(rank=2, epsilon=1.0).fit(cohort)", FIT)
    assert WARM in program
    assert FIT in program
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "mapped")], capture_output=True, text=True, check=True
    )
    size, growth, certified = done.stdout.split()
    assert certified == "True"
    assert int(growth) < 0.25 * int(size)


WARM = "tacitly.FedPower(2, epsilon=1.0).fit(warm.X)"
FIT = "tacitly.FedPower(2, epsilon=1.0, unit='row').fit(cohort)"


TRACE_WARM = "tacitly.TraceRegression(1, 4.0, privacy=sys.argv[2]).fit(warm.X.reshape(-1, 4, 4), warm.y)"
TRACE_OPEN = "X, y = np.lib.format.open_memmap(sys.argv[1], 'r'), np.load(sys.argv[1] + '.y.npy')"
TRACE_FIT = "tacitly.TraceRegression(1, 4.0, privacy=sys.argv[2], steps=2).fit(X, y)"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("privacy", ["full", "labels"])
def test_trace_regression_of_a_memory_map_needs_a_fraction_of_the_data(tmp_path: Path, privacy: str) -> None:
    """Entries in [0, 1], so that they are counted from a mean too: nothing is ever copied whole."""
    path = tmp_path / "X.npy"
    X = np.random.default_rng(0).random((40_000, 40, 40), dtype=np.float32)
    np.save(path, X)
    np.save(tmp_path / "X.npy.y.npy", X[:, 0, 0] + X[:, 1, 0])
    program = PROGRAM
    for old, new in (
        ("tacitly.PrivateFedRep(rank=2, epsilon=1.0).fit(warm.X, warm.y, warm.users)", TRACE_WARM),
        ("cohort = tacitly.Cohort.open(sys.argv[1])", TRACE_OPEN),
        ("tacitly.PrivateFedRep(rank=2, epsilon=1.0).fit(cohort)", TRACE_FIT),
        ("cohort.X.nbytes", "X.nbytes"),
    ):
        assert old in program
        program = program.replace(old, new)
    done = subprocess.run(
        [sys.executable, "-c", program, str(path), privacy], capture_output=True, text=True, check=True
    )
    size, growth, certified = done.stdout.split()
    assert certified == "True"
    assert int(growth) < 0.3 * int(size)
