"""A long fit says how far it is: on a terminal all the time, in a log every minute, and never where the caller does."""

from __future__ import annotations

import io
import math

import pytest

import tacitly
from tacitly import progress_line
from tacitly.methods.progress import fit_progress
from tacitly.privacy.accounting import compose
from tacitly.privacy.guarantee import Adjacency, Budget, GaussianEvent, Sensitivity
from tacitly.progress_line import ProgressLine

EVENTS = [GaussianEvent(sigma=20.0, sensitivity=Sensitivity.of_clip(1.0))] * 4
DATA = tacitly.datasets.make_shared_subspace(200, 4, 1, 6, random_state=0)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_line, "_PATIENCE", 0.0)
    monkeypatch.setattr(progress_line, "_LOGGED", 0.0)


@pytest.mark.usefixtures("_at_once")
def test_every_release_is_shown_with_its_cost_so_far_and_the_line_is_cleared() -> None:
    terminal = Terminal()
    with fit_progress(Budget(epsilon=1.0, delta=1e-6), EVENTS, ProgressLine("", terminal)) as released:
        for number in range(4):
            released(f"step {number + 1}")
    lines = terminal.getvalue().split("\r")
    half = compose(EVENTS[:2], Adjacency.ZERO_OUT, 1e-6)
    assert any(f"step 2: 2 of 4 releases, ε = {half:.2f} so far, about 0 s left (0 s)" in line for line in lines)
    assert any("4 of 4 releases" in line and "now users' own models" in line for line in lines)
    assert lines[-2].strip() == ""


@pytest.mark.usefixtures("_at_once")
def test_a_long_release_is_seen_to_go_on_and_a_log_gets_lines() -> None:
    terminal, log = Terminal(), io.StringIO()
    with ProgressLine("waiting", terminal) as line:
        assert line._clock is not None
        assert line._over.wait(1.2) is False  # nothing is told in this time
    assert "waiting (1 s)" in terminal.getvalue()
    with fit_progress(Budget(epsilon=math.inf, delta=1e-6), EVENTS, ProgressLine("", log)) as released:
        released("step 1")
    assert log.getvalue() == "step 1: 1 of 4 releases, no privacy (0 s)\n"


class Mute:
    """What some programs put in place of standard error: it has no isatty."""

    def write(self, text: str) -> None:
        raise OSError("the terminal was closed")


@pytest.mark.usefixtures("_at_once")
def test_work_goes_on_where_nobody_can_be_told() -> None:
    closed, gone = io.StringIO(), Terminal()
    closed.close()
    gone.write = Mute().write  # type: ignore[method-assign, assignment]
    for stream in (closed, gone, Mute()):
        with ProgressLine("waiting", stream) as line:  # type: ignore[arg-type]
            line.update("still waiting")


def test_short_work_shows_nothing() -> None:
    for stream in (Terminal(), io.StringIO()):
        with fit_progress(Budget(epsilon=1.0, delta=1e-6), EVENTS, ProgressLine("", stream)) as released:
            released("step 1")
        assert stream.getvalue() == ""


@pytest.mark.usefixtures("_at_once")
def test_every_fit_shows_its_progress_unless_the_caller_does(capsys: pytest.CaptureFixture[str]) -> None:
    model, told = tacitly.PrivateFedRep(rank=1, epsilon=4.0), list[str]()
    model.fit(DATA.X, DATA.y, DATA.users, on_release=told.append)
    assert told
    assert capsys.readouterr().err == ""
    model.fit(DATA.X, DATA.y, DATA.users)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == len(told)
    assert lines[-1].startswith(f"{told[-1]}: {len(told)} of {len(told)} releases, ε = 4.00 so far")
