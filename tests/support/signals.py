"""Signals that have their usual effect, however the tests were started."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def usual_effect(number: signal.Signals) -> Iterator[None]:
    """Undo that a signal is ignored, here and in processes started meanwhile.

    ``nohup`` ignores SIGHUP and a shell's background job SIGINT, and processes inherit that.
    """
    before = signal.getsignal(number)
    signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    try:
        yield
    finally:
        if before is not None:  # None: not set from Python, and cannot be restored
            signal.signal(number, before)
