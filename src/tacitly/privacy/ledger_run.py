"""One run of a ledger: debit, draw, publish, return; certify; finish.

:mod:`tacitly.privacy.ledger` explains why the order of these steps makes the account complete.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tacitly.privacy.book import RunRecord
from tacitly.privacy.guarantee import Event, check_event
from tacitly.privacy.ledger_file import LedgerMismatch
from tacitly.privacy.release import Release, canonical_json, same_costs

if TYPE_CHECKING:
    from tacitly.privacy.ledger import Ledger


class Run:
    """One program's releases, in order. Created by :meth:`Ledger.run`."""

    def __init__(
        self,
        ledger: Ledger,
        name: str,
        config: Mapping[str, Any],
        planned: tuple[Event, ...],
        *,
        certified: bool,
        resumed: bool,
    ) -> None:
        self.name, self.config, self.certified, self.resumed = name, config, certified, resumed
        self._ledger, self._planned = ledger, planned
        self._next, self._state = 0, "open"

    @property
    def releases(self) -> list[Release]:
        """The rows of this run, including those of earlier attempts."""
        return self._ledger.releases(self.name)

    def asked(self, queries: Sequence[object], through: NDArray[Any] | None = None) -> None:
        """Receive the queries behind the next release (about rows projected on ``through``).

        Does nothing here: the ledger keeps no queries. The audit's recording (:mod:`tacitly.audit.recording`) does.
        """

    def release(
        self,
        name: str,
        event: Event,
        draw: Callable[[], NDArray[Any]],
        *,
        noise: str,
        grid: float,
        coordinates: int,
        again: bool = True,
    ) -> NDArray[np.float64]:
        """Debit, draw, publish and return; or return the value that an earlier attempt published.

        ``again`` states whether an interrupted attempt may be repeated, which requires that nobody saw any of it.
        """
        self._check_open()
        check_event(event)
        wanted = Release(
            run=self.name,
            index=self._next,
            name=name,
            event=event,
            noise=noise,
            grid=float(grid),
            coordinates=int(coordinates),
            state="debited",
            attempts=1,
        )
        if self.certified and not wanted.cost.private:
            raise LedgerMismatch(
                f"nothing protects release {name!r} (noise: {noise}), and run {self.name!r} is certified. "
                "Open it with certified=False, in a separate ledger."
            )
        value = self._ledger.debit(wanted, again=again)
        if value is None:
            value = _packed(draw())
            self._ledger.publish(wanted, value)
        self._next += 1
        return _unpacked(value)

    def finish(self) -> None:
        """Close the run permanently, after comparing its releases with its plan.

        Call it last, when the result is stored safely: a finished run cannot be resumed, so its values cannot be read
        again through it.
        """
        if self._state == "finished":
            return
        self._check_open()
        rows = self.releases
        unpublished = [row.name for row in rows if row.state != "published"]
        if unpublished or len(rows) != self._next:
            raise LedgerMismatch(
                f"run {self.name!r} has {len(rows)} releases in the ledger, {len(unpublished)} of them without a "
                f"value, and this program made {self._next}. All must be published and the numbers equal."
            )
        if self._planned and not same_costs([row.event for row in rows], self._planned):
            raise LedgerMismatch(
                f"run {self.name!r} must release exactly the {len(self._planned)} events of its plan. "
                f"Found {len(rows)} releases, or other ratios of noise to sensitivity."
            )
        with self._ledger.writing():
            self._ledger.append("finish", run=self.name)
        self._state = "finished"
        self._ledger.unlock(self.name)

    def abandon(self) -> None:
        """Stop writing the run here, so that it can be opened again; published values stay published."""
        if self._state == "open":
            self._state = "abandoned"
            self._ledger.unlock(self.name)

    def _check_open(self) -> None:
        if self._state == "finished":
            raise LedgerMismatch(f"run {self.name!r} is finished. Open a run with another name.")
        if self._state == "abandoned":
            raise LedgerMismatch(f"run {self.name!r} was abandoned here. Open it again to resume it.")


def check_resumable(found: RunRecord, config: str, plan: str, certified: bool) -> None:
    """Raise unless the stored run is open and equals the requested one."""
    name = found.name
    if found.state == "finished":
        raise LedgerMismatch(
            f"run {name!r} of this ledger is finished. A new fit needs a name of its own: run='second', say."
        )
    if found.config != config:
        old, new = json.loads(found.config), json.loads(config)
        keys = [key for key in sorted({*old, *new}) if _entry(old, key) != _entry(new, key)]
        if keys == ["data"]:
            raise LedgerMismatch(_other_data(name, str(old.get("data")), str(new.get("data"))))
        raise LedgerMismatch(
            f"run {name!r} was begun with another configuration; these keys differ: "
            f"{', '.join(keys)}. Choose another name, or use that configuration."
        )
    if found.planned != plan:
        raise LedgerMismatch(f"run {name!r} was begun with another plan of releases. Choose another name.")
    if found.certified != certified:
        raise LedgerMismatch(f"run {name!r} was begun with certified={found.certified}. Found {certified}.")


def _other_data(name: str, old: str, new: str) -> str:
    if old.partition(":")[0] != new.partition(":")[0]:
        return (
            f"run {name!r} was begun with another key (another machine, user or TACITLY_HOME), so it cannot be told "
            "whether the rows are the same. Resume it there, or choose another name for a new run."
        )
    return f"run {name!r} was begun on other rows. Resume it with the same rows, or choose another name for a new run."


def _entry(config: Mapping[str, Any], key: str) -> str:
    return canonical_json(config[key]) if key in config else "absent"


def _packed(value: NDArray[Any]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.asarray(value, dtype=np.float64), allow_pickle=False)
    return buffer.getvalue()


def _unpacked(data: bytes) -> NDArray[np.float64]:
    return np.asarray(np.load(io.BytesIO(data), allow_pickle=False), dtype=np.float64)
