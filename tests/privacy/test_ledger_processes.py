"""The ledger when processes die, race and fork.

Each test runs one supervising program that imports once and then forks, so that dozens of killed processes
cost milliseconds each.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

import tacitly
from tacitly.privacy import home
from tacitly.privacy.accounting import compose
from tacitly.privacy.guarantee import Adjacency, Budget, GaussianEvent, Sensitivity
from tacitly.privacy.ledger import Ledger, RunInUse

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

EVENT = GaussianEvent(sigma=50.0, sensitivity=Sensitivity.of_clip(1.0))
PRELUDE = """
import os, random, signal, sys, time
import numpy as np
from scipy.special import ndtri
from tacitly.privacy.guarantee import Budget, GaussianEvent, Sensitivity
from tacitly.privacy.ledger import BudgetExceeded, Ledger

path, log = sys.argv[1], sys.argv[2]
EVENT = GaussianEvent(sigma=50.0, sensitivity=Sensitivity.of_clip(1.0))

drawn, most_drawn = 0, 1000

def draw():
    global drawn
    drawn += 1
    time.sleep(0.008 if drawn <= most_drawn else 600)
    bits = np.frombuffer(os.urandom(8 * 4), dtype=np.uint64)
    return ndtri((bits.astype(np.float64) + 0.5) / 2.0**64)

def note(line):
    handle = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, (line + "\\n").encode())
    os.close(handle)

def forked(work):
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
    return child
"""


def supervise(program: str, *arguments: Path) -> str:
    """Run a program and return what it printed."""
    source = str(Path(tacitly.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + program, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": source},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


KILLED = """
PLAN = [EVENT] * 30

def work():
    ledger = Ledger(path, ceiling=Budget(epsilon=2.0, delta=1e-6))
    if [run.state for run in ledger.runs()] == ["finished"]:
        return  # killed after it finished, before it exited
    run = ledger.run("toy", config={"rank": 2}, planned=PLAN)
    for index, event in enumerate(PLAN):
        value = run.release(f"round {index}", event, draw, noise="float", grid=0.0, coordinates=4)
        note(f"{index} {value.tobytes().hex()}")
    run.finish()

kills = 0
while True:
    most_drawn = 2 if kills < 10 else 1000  # a process cannot finish before the tenth kill, however late that comes
    child = forked(work)
    time.sleep(random.uniform(0.0, 0.025 + 0.004 * kills))  # longer each time, so that it ends
    os.kill(child, signal.SIGKILL)
    ended = os.waitpid(child, 0)
    if os.WIFSIGNALED(ended[1]):
        kills += 1
    else:
        assert os.WEXITSTATUS(ended[1]) == 0
        break
print(kills)
"""


def test_a_run_killed_at_random_moments_spends_its_plan_once(tmp_path: Path) -> None:
    path, log = tmp_path / "ledger.db", tmp_path / "log"
    kills = int(supervise(KILLED, path, log))
    assert kills >= 10
    with Ledger(path) as ledger:
        rows = ledger.releases("toy")
        assert [row.index for row in rows] == list(range(30))
        assert {row.state for row in rows} == {"published"}
        assert ledger.spent() == compose([EVENT] * 30, Adjacency.ZERO_OUT, 1e-6)
        assert ledger.runs()[0].state == "finished"
    with sqlite3.connect(path) as database:
        stored = {
            index: np.load(BytesIO(value), allow_pickle=False).tobytes().hex()
            for index, value in database.execute(
                "SELECT json_extract(body, '$.index'), value FROM entries JOIN blobs USING (seq) WHERE kind = 'publish'"
            )
        }
    returned = [line.split() for line in log.read_text().splitlines()]
    assert {int(index) for index, _ in returned} == set(range(30))
    assert all(stored[int(index)] == value for index, value in returned)
    assert len(set(stored.values())) == 30


RACING = """
def spend(name):
    def work():
        ledger = Ledger(path, ceiling=Budget(epsilon=0.4, delta=1e-6))
        run = ledger.run(name, config={})
        for index in range(40):
            try:
                run.release("round", EVENT, lambda: np.zeros(1), noise="float", grid=0.0, coordinates=1)
            except BudgetExceeded:
                note(f"{name} refused")
    return work

children = [forked(spend(f"run {i}")) for i in range(3)]
assert all(os.waitpid(child, 0)[1] == 0 for child in children)
"""


def test_processes_racing_for_one_budget_never_exceed_it(tmp_path: Path) -> None:
    path, log = tmp_path / "ledger.db", tmp_path / "log"
    supervise(RACING, path, log)
    room = 0
    while compose([EVENT] * (room + 1), Adjacency.ZERO_OUT, 1e-6) <= 0.4:
        room += 1
    assert 5 < room < 40, "the race must be for something scarce"
    with Ledger(path) as ledger:
        assert len(ledger.releases()) == room
        assert ledger.spent() <= 0.4
    assert len(log.read_text().splitlines()) == 3 * 40 - room


ORPHAN = """
def own():
    ledger = Ledger(path)
    ledger.run("toy", config={})
    grandchild = os.fork()
    if grandchild == 0:
        time.sleep(600)
        os._exit(0)
    note(str(grandchild))
    os.kill(os.getpid(), signal.SIGKILL)

os.waitpid(forked(own), 0)
"""


def test_the_lock_of_a_dead_process_does_not_block_even_if_its_children_live(tmp_path: Path) -> None:
    path, log = tmp_path / "ledger.db", tmp_path / "log"
    # Output must not be captured through a pipe that the sleeping grandchild would keep open.
    source = str(Path(tacitly.__file__).parents[1])
    subprocess.run(
        [sys.executable, "-c", PRELUDE + ORPHAN, str(path), str(log)],
        env={**os.environ, "PYTHONPATH": source},
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=600,
    )
    grandchild = int(log.read_text())
    try:
        os.kill(grandchild, 0)
        with Ledger(path) as ledger:
            assert ledger.run("toy", config={}).resumed
    finally:
        os.kill(grandchild, signal.SIGKILL)


HELD = """
def own():
    ledger = Ledger(path)
    run = ledger.run("toy", config={})
    note(str(os.getpid()))
    time.sleep(600)

child = forked(own)
while not os.path.exists(log):
    time.sleep(0.005)
try:
    Ledger(path).run("toy", config={})
except Exception as error:
    print(type(error).__name__, error)
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
print(Ledger(path).run("toy", config={}).resumed)
"""


def test_a_second_process_is_told_who_writes_the_run(tmp_path: Path) -> None:
    refusal, resumed = supervise(HELD, tmp_path / "ledger.db", tmp_path / "log").splitlines()
    assert refusal.startswith(RunInUse.__name__)
    assert f"pid {(tmp_path / 'log').read_text().strip()}" in refusal
    assert resumed == "True"


FORKED = """
ledger = Ledger(path, ceiling=Budget(epsilon=1.0, delta=1e-6))
ledger.run("toy", config={})

def use():
    try:
        ledger.spent()
    except RuntimeError as error:
        note(str(error))

os.waitpid(forked(use), 0)
try:
    Ledger(path).run("toy", config={})
except Exception as error:
    print(type(error).__name__)
"""


def test_a_forked_child_cannot_use_the_ledger_and_does_not_free_its_locks(tmp_path: Path) -> None:
    printed = supervise(FORKED, tmp_path / "ledger.db", tmp_path / "log")
    assert "opened by the process that uses it" in (tmp_path / "log").read_text()
    assert printed.strip() == "RunInUse"


CREATING = """
def create():
    with Ledger(path, ceiling=Budget(epsilon=1.0, delta=1e-6)) as ledger:
        ledger.run(str(os.getpid()), config={}).finish()

children = [forked(create) for _ in range(6)]
assert all(os.waitpid(child, 0)[1] == 0 for child in children)
"""


def test_processes_that_create_one_ledger_at_once_share_it(tmp_path: Path) -> None:
    supervise(CREATING, tmp_path / "ledger.db", tmp_path / "log")
    with Ledger(tmp_path / "ledger.db", ceiling=Budget(epsilon=1.0, delta=1e-6)) as ledger:
        assert len(ledger.runs()) == 6
    assert [file.name for file in tmp_path.iterdir()] == ["ledger.db"]


REMEMBERED = """
import tacitly.privacy.home as home
from tacitly.privacy.people import People

account, slow = "ab" * 16, home.anchor

def remembering(entries, people):
    def work():
        def anchor(name):
            found = slow(name)
            time.sleep(random.uniform(0.0, 0.01))  # what another process writes meanwhile must not be undone
            return found
        home.anchor = anchor
        for count in entries:
            home.remember(account, home.Anchor(path=path, entries=count, head="0" * 64))
        home.remember_people(account, People.of(people, b"key"))
    return forked(work)

children = [remembering(range(1 + odd, 41, 2), range(10 * odd, 10 * odd + 10)) for odd in (0, 1)]
seen, alive = [0], set(children)
while alive:
    for child in list(alive):
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            assert status == 0
            alive.discard(child)
    found = slow(account)
    if found is not None and found.entries != seen[-1]:
        seen.append(found.entries)
print(*seen, len(home.people_of(account)))
"""


def test_two_processes_that_remember_an_account_never_put_an_earlier_state_back(tmp_path: Path) -> None:
    *seen, people = map(int, supervise(REMEMBERED, tmp_path / "ledger.db", tmp_path / "log").split())
    assert seen == sorted(seen)
    assert seen[-1] == 40
    assert people == 20  # of both


def test_an_account_is_remembered_where_files_cannot_be_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(path: Path) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setenv("TACITLY_HOME", str(tmp_path))
    monkeypatch.setattr(home, "lock_file", no_locks)
    home.remember("0" * 32, home.Anchor(path="ledger", entries=3, head="hash"))
    assert home.anchor("0" * 32) == home.Anchor(path="ledger", entries=3, head="hash")
