"""A long fit says how far it is, at a terminal and nowhere else."""

from __future__ import annotations

import io
import math

from tacitly.neural.engine.progress import Progress
from tacitly.privacy.accounting import compose
from tacitly.privacy.guarantee import Adjacency, Budget, GaussianEvent, Sensitivity

EVENTS = [GaussianEvent(sigma=20.0, sensitivity=Sensitivity.of_clip(1.0))] * 4


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_every_release_is_shown_with_its_cost_so_far_and_the_line_is_cleared() -> None:
    terminal, heard = Terminal(), []
    budget = Budget(epsilon=1.0, delta=1e-6)
    progress = Progress(budget, EVENTS, heard.append, terminal)
    for number in range(4):
        progress(f"step {number + 1}")
    lines = terminal.getvalue().split("\r")
    half = compose(EVENTS[:2], Adjacency.ZERO_OUT, 1e-6)
    assert f"step 2: 2 of 4 releases, ε = {half:.2f} so far, about 0 s left" in lines[2]
    assert "4 of 4 releases" in lines[4]
    assert heard == [f"step {number + 1}" for number in range(4)]
    progress.close()
    assert terminal.getvalue().split("\r")[-2].strip() == ""


def test_nothing_is_written_elsewhere_and_no_cost_where_there_is_none() -> None:
    quiet = io.StringIO()
    Progress(Budget(epsilon=1.0, delta=1e-6), EVENTS, None, quiet)("step 1")
    assert quiet.getvalue() == ""
    terminal = Terminal()
    Progress(Budget(epsilon=math.inf, delta=1e-6), EVENTS, None, terminal)("step 1")
    assert "no privacy" in terminal.getvalue()
