"""Show the progress of a long fit: releases, their cost so far, and the time left."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from tacitly.privacy.accounting import compose
from tacitly.privacy.guarantee import Budget, Event
from tacitly.progress_line import ProgressLine, duration


@contextmanager
def fit_progress(
    budget: Budget, events: Sequence[Event], line: ProgressLine | None = None
) -> Iterator[Callable[[str], None]]:
    """Count releases on one line while the block runs.

    The costs of a plan are public, and so is the time of a round for the person who runs the fit.
    """
    total, done = len(events), 0
    with line or ProgressLine(f"release 1 of {total}") as shown:

        def released(name: str) -> None:
            nonlocal done
            done += 1
            text = f"{name}: {done} of {total} releases, {_cost(budget, events[:done])}"
            shown.update(lambda: f"{text}{_ahead(shown.seconds, done, total)}")

        yield released


def _ahead(seconds: float, done: int, total: int) -> str:
    """Return what is ahead; the first releases take less time than the others, and say nothing about it."""
    if done >= total:
        return ", now users' own models"
    return f", about {duration(seconds / done * (total - done))} left" if 3 * done >= total else ""


def _cost(budget: Budget, spent: Sequence[Event]) -> str:
    if not math.isfinite(budget.epsilon):
        return "no privacy"
    if any(getattr(event, "sampling_rate", 1.0) < 1.0 for event in spent):  # composing them would take seconds
        return f"ε = {budget.epsilon:.2f} in the end"
    return f"ε = {compose(spent, budget.adjacency, budget.delta):.2f} so far"
