"""Check that a ledger loses no entries and never overspends when writers are killed, race, and run out of disk.

Writers draw releases from one account and record each value when it is returned. They are killed at random moments, two
at a time, some of them under a limit on the size of files, which acts as a full disk. After every kill the ledger is
opened again. It must contain every value that was ever returned, unchanged, and must never have debited more than its
ceiling.

``python -m benchmarks.ledger [--quick]``
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import signal
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import numpy as np

from benchmarks.tables import keep, table
from tacitly.privacy.guarantee import GaussianEvent, Sensitivity
from tacitly.privacy.ledger import BudgetExceeded, Ledger, LedgerMismatch, RunInUse

EVENT = GaussianEvent(sigma=90.0, sensitivity=Sensitivity.of_clip(1.0))
CEILING = 1.0


class Witness:
    """Values that writers were given, told through a pipe: whole lines or nothing, even if disk or writer fail."""

    def __init__(self) -> None:
        self._out, self.into = os.pipe()
        os.set_blocking(self._out, False)
        self._text = b""

    def lines(self) -> list[str]:
        """Return every line that was told so far."""
        with suppress(BlockingIOError):
            while part := os.read(self._out, 1 << 16):
                self._text += part
        return self._text.decode().splitlines()


def write(path: Path, witness: Witness, name: str, room: int | None) -> None:
    """Release until the account is empty; tell every value that is returned."""
    if room is not None:
        limit = path.stat().st_size + room
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        with Ledger(path) as ledger:
            run = ledger.run(name, config={})
            for index in range(10**6):
                value = run.release("sum", EVENT, draw, noise="float", grid=0.0, coordinates=4)
                os.write(witness.into, f"{name} {index} {value.tobytes().hex()}\n".encode())
    except (BudgetExceeded, LedgerMismatch, RunInUse):
        return


def draw() -> np.ndarray:
    return np.frombuffer(os.urandom(32))


def writer(*arguments: object) -> int:
    child = os.fork()
    if child == 0:
        try:
            write(*arguments)  # type: ignore[arg-type]
        finally:
            os._exit(0)
    return child


def wait_for(witness: Witness, count: int, children: list[int]) -> dict[int, int]:
    """Wait until this many values were told, or every writer has given up; return how those ended that have."""
    ended: dict[int, int] = {}
    while len(witness.lines()) < count and len(ended) < len(children):
        for child in set(children) - set(ended):
            process, status = os.waitpid(child, os.WNOHANG)
            if process:
                ended[child] = status
        time.sleep(0.002)
    return ended


def check(path: Path, witness: Witness) -> tuple[int, int, float]:
    """Return how many values that were given the ledger lacks or has otherwise, how many it has, and what is spent."""
    with Ledger(path) as ledger:
        stored = {key: ledger._file.blob(*place)[-32:].hex() for key, place in ledger.book.values.items()}
        spent = ledger.spent()
    lost = 0
    for line in witness.lines():
        name, index, value = line.split(" ")
        lost += stored.get((name, int(index))) != value
    return lost, len(stored), spent


def attack(kills: int, *, disk: bool, seed: int) -> dict[str, object]:
    """Kill writers of one account until ``kills`` are dead; start a new account whenever one is spent."""
    chance, dead, lost, values, most, accounts = random.Random(seed), 0, 0, 0, 0.0, 0
    # In memory where there is such a folder: a process that dies leaves the same state there, and many die in a minute.
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        os.environ["TACITLY_HOME"] = f"{folder}/home"
        while dead < kills:
            accounts += 1
            path, witness, spent, held = Path(folder) / f"{accounts}.ledger", Witness(), 0.0, 0
            Ledger(path, ceiling=CEILING).close()
            while dead < kills and spent < 0.95 * CEILING:
                room = chance.choice([None, 0, 512, 4096, 20_000]) if disk else None
                before = len(witness.lines())
                pair = [writer(path, witness, chance.choice(["a", "b", "c"]), room) for _ in range(2)]
                ended = wait_for(witness, before + chance.randrange(held + 12), pair)
                time.sleep(chance.uniform(0.0, 0.02))
                for child in set(pair) - set(ended):
                    os.kill(child, signal.SIGKILL)
                    dead += os.WIFSIGNALED(os.waitpid(child, 0)[1])
                gone, held, spent = check(path, witness)
                lost, most = max(lost, gone), max(most, spent)
            values += held
    what = "two writers, disk often full" if disk else "two writers"
    return {"": what, "killed": dead, "accounts": accounts, "values": values, "lost": lost, "most spent": f"{most:.4f}"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="12 kills instead of 200")
    quick = parser.parse_args().quick
    kills = 6 if quick else 100
    rows = [attack(kills, disk=disk, seed=int.from_bytes(os.urandom(8), "big")) for disk in (False, True)]
    text = table(list(rows[0]), [list(row.values()) for row in rows])
    note = f"Ceiling ε = {CEILING:g}. Lost: values that a writer was given and the ledger does not hold."
    keep("ledger", {"rows": rows}, f"{text}\n\n{note}", quick=quick)
    assert not any(row["lost"] for row in rows)
    assert all(float(str(row["most spent"])) <= CEILING + 1e-9 for row in rows)


if __name__ == "__main__":
    main()
