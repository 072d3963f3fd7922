"""A ledger for attackers: it keeps every question and every answer, or answers from an earlier tape.

An estimator that is given a :class:`Tape` as its ledger runs as it always does, through the real door with real noise;
nothing is debited, so thousands of runs cost what their arithmetic costs. Never use one for anybody's data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tacitly.arrays import Array
from tacitly.federation.base import Query
from tacitly.privacy.guarantee import Budget, Event
from tacitly.privacy.release import Release


@dataclass(frozen=True)
class Entry:
    """One release: the question (public), its event, and what came out."""

    queries: tuple[Query, ...]
    release: Release
    value: Array
    through: Array | None = None
    """Projection of the rows that were asked about; None for the rows as they are."""

    @property
    def event(self) -> Event:
        """Noise and sensitivity."""
        return self.release.event


@dataclass
class Tape:
    """What an attacker sees of one run. With ``answers`` it replays them instead of drawing."""

    answers: Sequence[Array] | None = None
    entries: list[Entry] = field(default_factory=list)
    ceiling: Budget | None = None

    def run(self, name: str, *, config: Mapping[str, Any], **_: object) -> TapeRun:
        """Open a run that is written on this tape."""
        self.entries.clear()
        return TapeRun(self, name, config)


class TapeRun:
    """The part of :class:`~tacitly.privacy.ledger.Run` that a federation and an estimator use."""

    certified, resumed = True, False

    def __init__(self, tape: Tape, name: str, config: Mapping[str, Any]) -> None:
        self.name, self.config = name, config
        self._tape = tape
        self._queries: tuple[Query, ...] = ()
        self._through: Array | None = None

    @property
    def releases(self) -> list[Release]:
        """What was released so far."""
        return [entry.release for entry in self._tape.entries]

    def asked(self, queries: Sequence[object], through: Array | None = None) -> None:
        """Keep the question behind the next release, and the projection of the rows it is about."""
        self._through = through
        self._queries = tuple(query for query in queries if isinstance(query, Query))

    def release(
        self,
        name: str,
        event: Event,
        draw: Callable[[], Array],
        *,
        noise: str,
        grid: float,
        coordinates: int,
        **_: object,
    ) -> Array:
        """Draw, or replay; keep what came out."""
        index, tape = len(self._tape.entries), self._tape
        # Where the tape is too short, the run asks more than the one it replays; the comparison will say so.
        replayed = tape.answers is not None and index < len(tape.answers)
        value = np.array(tape.answers[index]) if replayed and tape.answers is not None else draw()
        release = Release(
            run=self.name,
            index=index,
            name=name,
            event=event,
            noise=noise,
            grid=grid,
            coordinates=coordinates,
            state="published",
            attempts=1,
        )
        tape.entries.append(Entry(self._queries, release, value, self._through))
        return value

    def finish(self, billboard_sha256: str | None = None) -> None:
        """Nothing to close."""

    def abandon(self) -> None:
        """Nothing to give up."""
