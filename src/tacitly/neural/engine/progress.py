"""Show the progress of a long fit on a terminal: releases, their cost so far, and the time left."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from typing import TextIO

from tacitly.privacy.accounting import compose
from tacitly.privacy.guarantee import Budget, Event


class Progress:
    """A callback for releases that keeps one line up to date on a terminal; elsewhere it writes nothing.

    The costs of a plan are public, and so is the time of a round for the person who runs the fit. ``then`` is called
    too.
    """

    def __init__(
        self,
        budget: Budget,
        events: Sequence[Event],
        then: Callable[[str], None] | None = None,
        stream: TextIO | None = None,
    ) -> None:
        self._budget, self._events, self._then = budget, events, then
        self._stream = sys.stderr if stream is None else stream
        self._begun, self._done, self._width = time.monotonic(), 0, 0

    def __call__(self, name: str) -> None:
        """Count a release."""
        self._done += 1
        if self._stream.isatty():
            total = len(self._events)
            pace = (time.monotonic() - self._begun) / self._done
            ahead = f"about {duration(pace * (total - self._done))} left" if self._done < total else "now users' own"
            self._show(f"{name}: {self._done} of {total} releases, {self._cost()}, {ahead}")
        if self._then is not None:
            self._then(name)

    def close(self) -> None:
        """Clear the line."""
        if self._width:
            self._show("")
            self._stream.write("\r")
            self._width = 0

    def _cost(self) -> str:
        if not math.isfinite(self._budget.epsilon):
            return "no privacy"
        spent = self._events[: self._done]
        if any(getattr(event, "sampling_rate", 1.0) < 1.0 for event in spent):  # composing them would take seconds
            return f"ε = {self._budget.epsilon:.2f} in the end"
        return f"ε = {compose(spent, self._budget.adjacency, self._budget.delta):.2f} so far"

    def _show(self, line: str) -> None:
        self._stream.write("\r" + line.ljust(self._width))
        self._stream.flush()
        self._width = len(line)


def duration(seconds: float) -> str:
    """Return a duration in a suitable unit.

    >>> duration(42.4), duration(150.0), duration(7500.0)
    ('42 s', '2 min', '2.1 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
