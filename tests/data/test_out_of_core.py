"""Data on disk, larger than the memory a fit may use."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tacitly.data.cohort import Cohort

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

# A small copy of the same kind is fitted first, so that what is measured is no compiler's memory.
PROGRAM = """
import sys, threading, time
import numpy as np
import tacitly

def anonymous():
    with open("/proc/self/status") as status:
        return int(next(line for line in status if line.startswith("RssAnon")).split()[1]) * 1024

def cohort(path):
    found = tacitly.Cohort.open(path)
    return found, (found,)

def matrices(path):
    X = np.lib.format.open_memmap(path + "/X.npy", "r")
    return X, (X, np.load(path + "/y.npy"))

made, opened = (lambda: {made}), {opened}
made().fit(*opened(sys.argv[1])[1])
whole, given = opened(sys.argv[2])
before, peak, stop = anonymous(), [0], threading.Event()
def watch():
    while not stop.is_set():
        peak[0] = max(peak[0], anonymous())
        time.sleep(0.002)
thread = threading.Thread(target=watch); thread.start()
model = made().fit(*given)
stop.set(); thread.join()
assert model.certificate_.certified
print((peak[0] - before) / getattr(whole, "X", whole).nbytes)
"""


def memory_of(made: str, opened: str, small: Path, large: Path) -> float:
    """Return the memory that a fit takes, as a share of the data's size."""
    program = PROGRAM.replace("{made}", made).replace("{opened}", opened)
    done = subprocess.run([sys.executable, "-c", program, small, large], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


def test_a_fit_on_a_memory_map_needs_a_fraction_of_the_data(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name, n in (("small", 8_400), ("large", 40_000)):
        m, d = 40, 32
        X = rng.standard_normal((n * m, d), dtype=np.float32)
        y = X[:, 0] + rng.standard_normal(n * m, dtype=np.float32)
        Cohort.from_offsets(X, y, np.arange(0, n * m + 1, m)).save(tmp_path / name)
    share = memory_of(
        "tacitly.PrivateFedRep(rank=2, epsilon=1.0, rounds=2)", "cohort", tmp_path / "small", tmp_path / "large"
    )
    assert share < 0.5  # a block of users, centred; every row in two directions; heads' statistics


def test_components_of_a_memory_map_need_a_fraction_of_the_data(tmp_path: Path) -> None:
    for name, n in (("small", 10_000), ("large", 2_000_000)):
        X = np.random.default_rng(0).standard_normal((n, 32), dtype=np.float32)
        Cohort.from_offsets(X, None, np.array([0, len(X)])).save(tmp_path / name)
    share = memory_of("tacitly.FedPower(2, epsilon=1.0, unit='row')", "cohort", tmp_path / "small", tmp_path / "large")
    assert share < 0.25


@pytest.mark.parametrize("privacy", ["full", "labels"])
def test_trace_regression_of_a_memory_map_needs_a_fraction_of_the_data(tmp_path: Path, privacy: str) -> None:
    """Entries in [0, 1], so that they are counted from a mean too: nothing is ever copied whole."""
    for name, n in (("small", 2_000), ("large", 40_000)):
        X = np.random.default_rng(0).random((n, 40, 40), dtype=np.float32)
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "X.npy", X)
        np.save(tmp_path / name / "y.npy", X[:, 0, 0] + X[:, 1, 0])
    made = f"tacitly.TraceRegression(1, 4.0, privacy={privacy!r}, steps=2)"
    assert memory_of(made, "matrices", tmp_path / "small", tmp_path / "large") < 0.3  # blocks
