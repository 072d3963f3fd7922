"""Killed at any moment, a run goes on: nothing is spent twice, forgotten, or drawn again."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from tacitly.cli.accounts import account_of
from tacitly.privacy.certificate import Certificate
from tacitly.privacy.guarantee import Budget
from tacitly.privacy.ledger import Ledger

PROGRAM = """
import sys
import numpy as np
import tacitly
from tacitly.datasets import make_shared_subspace

folder = sys.argv[1]
data = make_shared_subspace(400, 6, 1, 8, 0.1, random_state=0)
ledger = tacitly.Ledger(folder + "/ledger", ceiling=tacitly.privacy.guarantee.Budget(epsilon=1.0, delta=1e-6))

class Slow(tacitly.federation.local.LocalFederation):
    def _exact_sum(self, query, bound, grid, chosen=None):
        import time
        time.sleep(0.02)
        return super()._exact_sum(query, bound, grid, chosen)

tacitly.federation.local.LocalFederation = Slow
print("ready", flush=True)
model = tacitly.PrivateFedRep(rank=1, epsilon=1.0, ledger=ledger, run="fit")
model.fit(data.X, data.y, data.users, on_release=lambda name: print("released", name, flush=True))
np.save(folder + "/basis.npy", model.basis_)
tacitly.save(model, folder + "/model")
print("done", flush=True)
"""


def test_a_killed_fit_resumes_without_losing_or_repeating_a_draw(tmp_path: Path) -> None:
    chance = random.Random(os.urandom(8))
    kills, values = 0, {}
    for attempt in range(40):
        process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                "import tacitly.federation.local, tacitly.privacy.guarantee\n" + PROGRAM,
                str(tmp_path),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        if attempt < 6:
            time.sleep(chance.uniform(0.0, 0.35))
            process.send_signal(signal.SIGKILL)
            kills += 1
        rest = process.stdout.read()
        process.wait()
        with Ledger(tmp_path / "ledger") as ledger:
            rows = ledger.releases("fit")
            assert ledger.spent() <= 1.0
            stored = {index: ledger._file.blob(*place) for (_, index), place in ledger.book.values.items()}
        for index, value in stored.items():
            assert values.setdefault(index, value) == value  # what was once published never changes
        if "done" in rest:
            break
    assert kills >= 1
    assert len(rows) == 54
    assert all(row.state == "published" for row in rows)
    assert len({bytes(value) for value in values.values()}) == 54
    with Ledger(tmp_path / "ledger") as ledger:
        assert abs(ledger.spent() - 1.0) < 1e-6
        assert ledger.ceiling == Budget(epsilon=1.0, delta=1e-6)
    assert np.isfinite(np.load(tmp_path / "basis.npy")).all()


HELD = """
import itertools, pathlib, time
from tacitly.cli.main import main
from tacitly.federation.local import LocalFederation

exact_sum, calls = LocalFederation._exact_sum, itertools.count()

def held(self, *arguments):
    if next(calls) == 5:
        pathlib.Path("held").touch()
        time.sleep(600)
    return exact_sum(self, *arguments)

LocalFederation._exact_sum = held
main()
"""


def test_ctrl_c_leaves_a_state_that_the_same_command_goes_on_from(tmp_path: Path) -> None:
    """The first fit waits in its sixth sum, so that the signal comes in the middle however fast the machine is."""
    rng = np.random.default_rng(0)
    rows = ["u,a,b,y"] + [f"c{i // 6},{a:.3f},{b:.3f},{a:.3f}" for i, (a, b) in enumerate(rng.normal(size=(12_000, 2)))]
    (tmp_path / "rows.csv").write_text("\n".join(rows) + "\n")
    words = ["fit", "rows.csv", "--user", "u", "--target", "y", "--epsilon", "1", "--no-compare"]
    first, second = [sys.executable, "-c", HELD, *words], [sys.executable, "-m", "tacitly", *words]
    process = subprocess.Popen(first, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "held").exists() and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130, err
    assert "Run the same command again" in err
    assert not (tmp_path / "model").exists()
    again = subprocess.run(second, cwd=tmp_path, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "model" / "certificate.json").exists()
    certificate = Certificate.from_json((tmp_path / "model" / "certificate.json").read_text("utf-8"))
    with Ledger(account_of(certificate)) as ledger:
        assert len(ledger.releases()) == len(certificate.releases) > 20
        assert ledger.spent(delta=1e-6) <= 1.0
