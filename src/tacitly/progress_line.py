"""One line on the terminal that says what is being done and for how long; in a log, a line a minute."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Self, TextIO

_PATIENCE = 2.0  # seconds before a terminal shows anything: most work is over by then
_UNUSABLE = (AttributeError, OSError, ValueError)
"""Of a stream that is closed, gone, or a program's own: work does not end because nobody can be told of it."""
_LOGGED = 60.0  # seconds between two lines where there is no terminal (files, notebooks)


class ProgressLine:
    """Shows a text and the time since the beginning on standard error, while the block runs; cleared at the end.

    >>> with ProgressLine("reading the table") as line:
    ...     line.update("reading the table: 50%")
    """

    def __init__(self, text: str, stream: TextIO | None = None) -> None:
        self._text: str | Callable[[], str] = text
        self._stream = sys.stderr if stream is None else stream
        self._live = False
        with suppress(*_UNUSABLE):
            self._live = self._stream.isatty()
        self._begun = self._logged = time.monotonic()
        self._width = 0
        self._lock, self._over = threading.Lock(), threading.Event()
        self._clock: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._live:
            self._clock = threading.Thread(target=self._tick, daemon=True)
            self._clock.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._clock is not None:
            self._clock.join()
        with self._lock:
            if self._width:
                self._write("")
                self._put("\r")
                self._width = 0

    @property
    def seconds(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._begun

    def update(self, text: str | Callable[[], str]) -> None:
        """Change the text; a function is called whenever the line is shown."""
        self._text = text
        self._show()

    def _tick(self) -> None:
        while not self._over.wait(1.0):
            self._show()

    def _show(self) -> None:
        with self._lock:
            text = f"{self._text if isinstance(self._text, str) else self._text()} ({duration(self.seconds)})"
            if self._live and self.seconds >= _PATIENCE:
                self._write(text[: max(20, shutil.get_terminal_size().columns - 1)])
            elif not self._live and self._stream is not None and time.monotonic() - self._logged >= _LOGGED:
                self._logged = time.monotonic()
                self._put(f"{text}\n")

    def _write(self, line: str) -> None:
        self._put("\r" + line.ljust(self._width))
        self._width = len(line)

    def _put(self, text: str) -> None:
        with suppress(*_UNUSABLE):
            self._stream.write(text)
            self._stream.flush()


def duration(seconds: float) -> str:
    """Return a duration in a suitable unit.

    >>> duration(42.4), duration(150.0), duration(7500.0)
    ('42 s', '2 min', '2.1 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
