"""The contents of a coordinator's folder: the settings of the run, its roster, and its status. All of it is public."""

from __future__ import annotations

import json
import math
import os
import secrets
import threading
import time
from collections import UserDict
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tacitly.federation.flower.card import Card
from tacitly.federation.flower.groups import check_colluding
from tacitly.methods import REGISTRY
from tacitly.methods.registry import REQUIRED, Method
from tacitly.privacy.guarantee import Adjacency, Budget, Unit

FORMAT = {"format": "tacitly coordinator", "version": 1}
"""Format and version in ``settings.json``. A folder with another version is refused."""

INVITATION = {"format": "tacitly invitation", "version": 1}
"""Format and version in ``invitation.json``. A site refuses another version."""

_ENVELOPE = 1 << 18  # bytes of a message besides its numbers


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings that determine what is learned and what is guaranteed.

    ``options`` are parameters of the method's estimator, by name.
    """

    server: str
    out: str
    epsilon: float
    delta: float = 1e-6
    adjacency: str = "zero-out"
    method: str = field(default_factory=lambda: REGISTRY.default("serve").name)
    trust: str = "central"
    colluding: int = 1
    # Unique, because a run's name may be used only once in the ledgers of the nodes.
    run: str = field(default_factory=lambda: f"model-{secrets.token_hex(8)}")
    options: dict[str, Any] = field(default_factory=dict)
    patience: dict[str, float] = field(default_factory=dict)
    cards: tuple[Card, ...] = ()

    def __post_init__(self) -> None:
        offered = REGISTRY.offered("serve")
        if self.method not in offered:
            raise ValueError(f"--method must be one of {', '.join(offered)}. Found {self.method!r}.")
        if self.trust not in ("central", "node", "secure"):
            raise ValueError(f"--trust must be central, node or secure. Found {self.trust!r}.")
        if self.trust == "secure" and len(self.cards) < 3:
            raise ValueError(f"masks protect nothing with fewer than three nodes. Found {len(self.cards)}.")
        if self.trust == "secure":
            check_colluding(len(self.cards), self.colluding)
        if self.trust != "central" and not math.isfinite(self.epsilon):
            raise ValueError("nodes that add noise need a finite --epsilon.")
        if self.trust != "central" and (self._described.selects or self._budget.unit is not Unit.USER):
            raise ValueError(
                "nodes that add noise protect whole users, and noisy sums only: choices (margin) and other units than "
                f"the user need --trust central. Found {self.trust!r}."
            )

    def save(self, folder: Path) -> None:
        """Write ``settings.json``."""
        content = {**FORMAT, **asdict(self), "epsilon": str(self.epsilon)}
        write_whole(folder / "settings.json", json.dumps(content, indent=2))

    @classmethod
    def load(cls, folder: Path) -> Settings:
        """Read ``settings.json``."""
        stored = json.loads((folder / "settings.json").read_text("utf-8"))
        check_format(folder / "settings.json", stored, FORMAT)
        values = {key: value for key, value in stored.items() if key not in FORMAT}
        cards = tuple(Card(**{**card, "features": tuple(card["features"])}) for card in values.pop("cards"))
        return cls(**{**values, "epsilon": float(values["epsilon"]), "cards": cards})

    @property
    def ceiling(self) -> Budget | None:
        """The ledger's ceiling: the budget, or None if the run is not private."""
        budget = self._budget
        return budget if budget.private else None

    @property
    def _described(self) -> Method:
        return REGISTRY[self.method]

    @property
    def _budget(self) -> Budget:
        return Budget(epsilon=self.epsilon, delta=self.delta, adjacency=Adjacency(self.adjacency), unit=self.unit)

    @property
    def unit(self) -> Unit:
        """Whose data one unit of privacy is."""
        return Unit.ROW if self._option("unit") in ("observation", "row") else Unit.USER

    def _option(self, name: str | None) -> Any:
        """Return the value of an option, or its default; None if the method has no such option."""
        defaults = {option.name: option.default for option in self._described.options}
        value = self.options.get(str(name), defaults.get(str(name)))
        return None if value is REQUIRED else value

    @property
    def longest_answer(self) -> int:
        """Maximum size in bytes of any answer to a question of this run."""
        d = len(self.cards[0].features) if self.cards else 0
        coordinates = self._described.coordinates(d, self.options)
        # A masked answer carries a share for every other node.
        copies = len(self.cards) if self.trust == "secure" else 1
        return 8 * copies * (max(coordinates, (d + 1) * (d + 2)) + 2) + _ENVELOPE

    @property
    def learns(self) -> dict[str, Any]:
        """What a site needs to know to compile in advance."""
        rank = self._option(self._described.rank)
        several = isinstance(rank, str) or (rank is not None and rank > 1)
        return {"method": self.method, "several": several, **self._described.words(self.options)}

    def roster(self, folder: Path) -> dict[int, Card]:
        """Return cards by the node id that Flower assigned to each key."""
        ids = json.loads((folder / "nodes.json").read_text("utf-8"))
        return {int(ids[card.name]): card for card in self.cards}

    def planned(self, model: Any) -> int | None:
        """Return the number of releases, if it is known in advance."""
        try:
            return int(model.planned_releases())
        except ValueError:
            return None  # fit raises the same error, and the status reports it

    def model(self, ledger: Any, engine: Any) -> Any:
        """Return the unfitted estimator."""
        shared = {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "adjacency": self.adjacency,
            "ledger": ledger,
            "run": self.run,
            "engine": engine,
        }
        try:
            return self._described.build(**{**self.options, **shared})
        except TypeError as error:
            raise ValueError(f"an option or --set does not fit --method {self.method}: {error}.") from None


def check_format(path: Path, content: Any, expected: dict[str, Any]) -> None:
    """Raise unless a file states this format and version."""
    found = {key: content.get(key) for key in expected} if isinstance(content, dict) else None
    if found != expected:
        raise ValueError(f"{path} must have {expected}. Found {found}: use one version of tacitly everywhere.")


class Groups(UserDict[str, list[str]]):
    """The nodes that were asked for each masked sum, stored in a file: a restarted coordinator asks the same nodes."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "groups.json"
        super().__init__(json.loads(self._path.read_text("utf-8")) if self._path.exists() else {})

    def __setitem__(self, step: str, names: list[str]) -> None:
        """Store a group, also in the file."""
        if self.data.get(step) != names:
            self.data[step] = names
            write_whole(self._path, json.dumps(self.data))


class Status:
    """A coordinator's status, in a file for ``--status`` and the page; each event is also one line in a log."""

    def __init__(self, folder: Path) -> None:
        self._path, self._log = folder / "status.json", folder / "events.jsonl"
        self._lock = threading.Lock()

    def read(self) -> dict[str, Any]:
        """Return the latest status."""
        try:
            status: dict[str, Any] = json.loads(self._path.read_text("utf-8"))
        except FileNotFoundError:
            return {"state": "not started"}
        return status

    def change(self, **facts: Any) -> None:
        """Update some facts and keep the others."""
        with self._lock:
            now = round(time.time(), 3)
            write_whole(self._path, json.dumps({**self.read(), **facts, "updated": now}, indent=2))
            with self._log.open("a", encoding="utf-8") as log:
                log.write(json.dumps({"time": now, **facts}) + "\n")

    def release(self, name: str, count: int, spent: float | None) -> None:
        """Record a release; the time that is left is estimated from the first release since the start."""
        began = self.read().get("began") or {"at": round(time.time(), 3), "releases": count}
        self.change(state="running", release=name, releases=count, spent=spent, began=began)

    def round(self, facts: dict[str, Any]) -> None:
        """Record the outcome of a round."""
        before = self.read()
        verdicts = before.get("verdicts", {})
        for name, count in facts.get("verdicts", {}).items():
            verdicts[name] = verdicts.get(name, 0) + count
        answered = (
            f"{facts['answered']} of {facts['asked']} answered" if "answered" in facts else f"{facts['asked']} asked"
        )
        nodes = f"{answered} the last round"
        self.change(rounds=before.get("rounds", 0) + 1, nodes=nodes, verdicts=verdicts, last_round=facts)


def write_whole(path: Path, text: str) -> None:
    """Replace a file atomically."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    draft.write_text(text + "\n", encoding="utf-8")
    os.replace(draft, path)


def seconds_left(status: dict[str, Any]) -> float | None:
    """Return the estimated time for the remaining releases at the current pace; None if it is not known.

    >>> began = {"at": 100.0, "releases": 1}
    >>> seconds_left({"state": "running", "releases": 5, "planned": 10, "began": began, "updated": 108.0})
    10.0
    """
    began, done = status.get("began"), status.get("releases", 0)
    if not began or not status.get("planned") or done <= began["releases"] or status["state"] != "running":
        return None
    pace = (status["updated"] - began["at"]) / (done - began["releases"])
    return float(pace * (status["planned"] - done))


def farewell(run: str) -> bytes:
    """Return the message with which a coordinator tells its sites that a run is over."""
    return f"tacitly: run {run} has finished".encode()
