"""A ledger for attackers: it records every query with its answer, and can replay the answers of an earlier run.

An estimator whose ledger is a :class:`Recording` runs as usual, through the real federation with real noise, but
nothing is debited, so thousands of runs need only computing time. Never use it on real data.
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


@dataclass(frozen=True, eq=False)
class Entry:
    """One release: its queries (public), its event, and the value released."""

    queries: tuple[Query, ...]
    release: Release
    value: Array
    through: Array | None = None
    """Projection of the rows that the queries used; None for the original rows."""

    @property
    def event(self) -> Event:
        """Noise and sensitivity of the release."""
        return self.release.event


@dataclass
class Recording:
    """What an attacker observes of one run; with ``answers``, releases return these instead of drawing noise."""

    answers: Sequence[Array] | None = None
    entries: list[Entry] = field(default_factory=list)
    ceiling: Budget | None = None

    def run(self, name: str, *, config: Mapping[str, Any], **_: object) -> RecordedRun:
        """Open a run whose releases are recorded here."""
        self.entries.clear()
        return RecordedRun(self, name, config)


class RecordedRun:
    """The part of the interface of :class:`~tacitly.privacy.ledger.Run` that federations and estimators use."""

    certified, resumed = True, False

    def __init__(self, recording: Recording, name: str, config: Mapping[str, Any]) -> None:
        self.name, self.config = name, config
        self._recording = recording
        self._queries: tuple[Query, ...] = ()
        self._through: Array | None = None

    @property
    def releases(self) -> list[Release]:
        """The releases so far."""
        return [entry.release for entry in self._recording.entries]

    def asked(self, queries: Sequence[object], through: Array | None = None) -> None:
        """Record the queries of the next release, and the projection of the rows that they use."""
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
        """Draw or replay the value, and record it."""
        recording = self._recording
        index, answers = len(recording.entries), recording.answers
        # If a run makes more releases than the one it replays, the rest is drawn; comparing the recordings reports it.
        value = np.array(answers[index]) if answers is not None and index < len(answers) else draw()
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
        recording.entries.append(Entry(self._queries, release, value, self._through))
        return value

    def finish(self) -> None:
        """Do nothing: there is no durable state."""

    def abandon(self) -> None:
        """Do nothing: there is no durable state."""
