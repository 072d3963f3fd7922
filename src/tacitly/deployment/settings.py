"""What a coordinator's folder holds: the settings it was made with, who is registered, and how it is doing."""

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

from tacitly.federation.flower.node import Card
from tacitly.privacy.guarantee import Adjacency, Budget, Unit

METHODS = {
    "fedrep": "PrivateFedRep",
    "altmin": "PrivateAltMin",
    "low-rank-sparse": "LowRankSparse",
    "margin": "MarginClassifier",
    "trace": "TraceRegression",
    "svd": "FedPower",
}
"""What can be learned from nodes, and the estimator that does."""

_LISTED = 200_000  # candidates that a choice may have at most
_ENVELOPE = 1 << 18  # bytes around an answer's numbers


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that decides what is learned and what is promised: public."""

    server: str
    out: str
    rank: int
    epsilon: float
    delta: float = 1e-6
    adjacency: str = "zero-out"
    method: str = "fedrep"
    rounds: int | None = None
    trust: str = "central"
    colluding: int = 1
    # A name of its own: where nodes keep ledgers, a name answers one question once.
    run: str = field(default_factory=lambda: f"model-{secrets.token_hex(8)}")
    options: dict[str, Any] = field(default_factory=dict)
    patience: dict[str, float] = field(default_factory=dict)
    cards: tuple[Card, ...] = ()

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"--method must be one of {', '.join(METHODS)}. Found {self.method!r}.")
        if self.trust not in ("central", "node", "secure"):
            raise ValueError(f"--trust must be central, node or secure. Found {self.trust!r}.")
        if self.trust == "secure" and len(self.cards) < 3:
            raise ValueError(f"masks hide nothing among fewer than three nodes. Found {len(self.cards)}.")
        if self.trust != "central" and not math.isfinite(self.epsilon):
            raise ValueError("nodes that add noise need a finite --epsilon.")
        if self.trust != "central" and (self.method == "margin" or self._budget.unit is not Unit.USER):
            raise ValueError(
                "nodes that add noise guard whole users, by noisy sums: choices (margin) and units other than the "
                f"user need --trust central. Found {self.trust!r}."
            )

    def save(self, folder: Path) -> None:
        """Write them."""
        write_whole(folder / "settings.json", json.dumps({**asdict(self), "epsilon": str(self.epsilon)}, indent=2))

    @classmethod
    def load(cls, folder: Path) -> Settings:
        """Read them."""
        told = json.loads((folder / "settings.json").read_text("utf-8"))
        cards = tuple(Card(**{**card, "features": tuple(card["features"])}) for card in told.pop("cards"))
        return cls(**{**told, "epsilon": float(told["epsilon"]), "cards": cards})

    @property
    def ceiling(self) -> Budget | None:
        """The ledger's ceiling: what was asked for, none where that is no privacy."""
        budget = self._budget
        return budget if budget.private else None

    @property
    def _budget(self) -> Budget:
        rows = {"trace": "observation", "svd": "user"}.get(self.method)
        unit = Unit.ROW if self.options.get("unit", rows) in ("observation", "row") else Unit.USER
        return Budget(epsilon=self.epsilon, delta=self.delta, adjacency=Adjacency(self.adjacency), unit=unit)

    @property
    def longest_answer(self) -> int:
        """Bytes that no answer to a question of this run exceeds."""
        d = len(self.cards[0].features) if self.cards else 0
        size = d * self.rank
        coordinates = {"altmin": size * (size + 3) // 2, "low-rank-sparse": size * (size + 1)}.get(self.method, 0)
        if self.method == "margin":
            coordinates = max(_LISTED, int(self.options.get("candidates", 0)))
        if self.method == "trace":
            first, second = (int(side) for side in self.options.get("shape", (1, d)))
            coordinates = max(first * second, (first + second) * (self.rank + 2))
        return 8 * max(coordinates, (d + 1) * (d + 2)) + _ENVELOPE

    @property
    def told(self) -> dict[str, Any]:
        """What a site has to know to compile beforehand."""
        from tacitly.deployment.warm_up import TOLD

        usual = {"sparsity": "auto"} if self.method == "low-rank-sparse" else {}
        chosen = {name: value for name, value in {**usual, **self.options}.items() if name in TOLD}
        return {"method": self.method, "several": self.rank > 1, **chosen}

    def roster(self, folder: Path) -> dict[int, Card]:
        """Cards by the id that Flower bound to each key."""
        ids = json.loads((folder / "nodes.json").read_text("utf-8"))
        return {int(ids[card.name]): card for card in self.cards}

    def planned(self, model: Any) -> int | None:
        """How many releases there will be, where that is known beforehand."""
        try:
            return int(model.planned_releases())
        except ValueError:
            return None  # fit raises it again, where the status reports it

    def model(self, ledger: Any, engine: Any) -> Any:
        """Return the estimator, not fitted."""
        from tacitly import methods as estimators

        shared = {
            # Public randomness begins again where it did when a coordinator is started again.
            **({"random_state": 0} if self.method in ("trace", "margin") else {}),
            **({"sparsity": "auto"} if self.method == "low-rank-sparse" else {}),
            **self.options,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "adjacency": self.adjacency,
            "ledger": ledger,
            "run": self.run,
            "engine": engine,
        }
        if self.rounds is not None:
            shared["steps" if self.method == "trace" else "rounds"] = self.rounds
        try:
            return getattr(estimators, METHODS[self.method])(self.rank, **shared)
        except TypeError as error:
            raise ValueError(f"--set or --rounds does not fit --method {self.method}: {error}.") from None


class Groups(UserDict[str, list[str]]):
    """Which nodes were asked for each masked sum, in a file: a coordinator that is started again asks the same ones."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "groups.json"
        super().__init__(json.loads(self._path.read_text("utf-8")) if self._path.exists() else {})

    def __setitem__(self, step: str, names: list[str]) -> None:
        """Write it down."""
        if self.data.get(step) != names:
            self.data[step] = names
            write_whole(self._path, json.dumps(self.data))


class Status:
    """How a coordinator is doing, in a file for ``--status`` and the page, and a line an event in a log. All public."""

    def __init__(self, folder: Path) -> None:
        self._path, self._log = folder / "status.json", folder / "events.jsonl"
        self._lock = threading.Lock()

    def read(self) -> dict[str, Any]:
        """Return the latest."""
        try:
            told: dict[str, Any] = json.loads(self._path.read_text("utf-8"))
        except FileNotFoundError:
            return {"state": "not started"}
        return told

    def change(self, **facts: Any) -> None:
        """Write facts down; what was there and is not named stays."""
        with self._lock:
            now = round(time.time(), 3)
            write_whole(self._path, json.dumps({**self.read(), **facts, "updated": now}, indent=2))
            with self._log.open("a", encoding="utf-8") as log:
                log.write(json.dumps({"time": now, **facts}) + "\n")

    def round(self, facts: dict[str, Any]) -> None:
        """Write down how a round went."""
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
    """Replace a file so that nobody ever reads half of it."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    draft.write_text(text + "\n", encoding="utf-8")
    os.replace(draft, path)
