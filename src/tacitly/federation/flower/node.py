"""The half that holds rows: answers asks, keeps heads at home, and says nothing else.

A node may hold one user or a million. It computes clipped contributions by the queries' own definition (NumPy only, so
that it starts at once), or by their compiled form where it has many users and trusts the coordinator. A question is
tried on made-up rows before it meets real ones. Whatever goes wrong leaves as one of four codes. Where the coordinator
is not trusted with sums, the node's own ledger debits its noise before it is drawn and keeps what was sent: asked again
for the same release, it sends the same bytes; asked for another under that name, none.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Rows
from tacitly.data.cohort import Cohort
from tacitly.federation import wire
from tacitly.federation.base import Query
from tacitly.federation.flower.messages import Answer, Ask
from tacitly.federation.projected import losses_in
from tacitly.federation.query import made_up, rehearse
from tacitly.federation.scores import Scores
from tacitly.federation.shard import Shard
from tacitly.heads.base import HeadWork
from tacitly.privacy.clipping import GUARD
from tacitly.privacy.guarantee import Budget, GaussianEvent, Sensitivity, Unit
from tacitly.privacy.ledger import Ledger
from tacitly.privacy.noise import add_noise, slack_of

FEW = 64
"""Users up to which a node answers in plain NumPy: compiling would take longer."""


@dataclass(frozen=True, kw_only=True)
class Card:
    """What a node says of itself when it is registered: public.

    >>> card = Card(name="north", key="ecdsa-...", mask_key="00", users=30, features=("age", "dose"))
    >>> Card.from_json(card.to_json()) == card
    True
    """

    name: str
    key: str
    mask_key: str
    users: int
    features: tuple[str, ...]
    target: str | None = None
    rows: int | None = None

    def to_json(self) -> str:
        """Write it."""
        return json.dumps(asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Card:
        """Read it."""
        told = json.loads(text)
        return cls(**{**told, "features": tuple(told["features"])})


class Node:
    """Rows, and a folder for what must outlive the process: heads and the node's own ledger.

    ``trust`` is how far it trusts the coordinator (see :mod:`tacitly.federation.flower.coordinator`); ``ceiling`` what
    it allows itself to spend where it adds noise. ``peers`` are the mask keys of the other nodes by name, and
    ``mask_key`` this node's own, for sums that only cancel together: in groups of so many nodes that, ``colluding`` of
    them aside, a majority of all is left.
    """

    def __init__(
        self,
        name: str,
        cohort: Cohort,
        folder: Path,
        *,
        trust: str = "central",
        ceiling: Budget | None = None,
        mask_key: bytes | None = None,
        peers: Mapping[str, bytes] | None = None,
        colluding: int = 1,
        threads: int | None = None,
    ) -> None:
        self.name, self._folder = name, folder
        # Only the plain form ends in the clip whatever the query's numbers are: what a node charges for, it enforces.
        self.plain = trust != "central" or cohort.n_users <= FEW
        self._shard = Shard(cohort, threads=threads, plain=self.plain)
        if trust != "central" and ceiling is None:
            raise ValueError("a node that does not trust the coordinator needs a ceiling of its own (epsilon, delta).")
        self._trust, self._ceiling = trust, ceiling
        self._mask_key, self._peers, self._colluding = mask_key, dict(peers or {}), colluding
        if trust == "secure" and (mask_key is None or not self._peers):
            raise ValueError("masks need this node's key and the roster of the others' public keys.")

    @property
    def cohort(self) -> Cohort:
        """The rows."""
        return self._shard.cohort

    def answer(self, data: bytes) -> bytes:
        """Answer an ask. Never raises, and never says more than a code about what went wrong."""
        token = ""
        try:
            ask = Ask.from_bytes(data)
            token = ask.token
            thing = wire.decode(ask.thing)
        except Exception:
            return Answer(token, "malformed").to_bytes()
        try:
            if not self._fits(thing):
                return Answer(token, "refused").to_bytes()
            if ask.kind == "heads" and isinstance(thing, HeadWork):
                self.keep_heads(thing)
                return Answer(token, "ok", np.zeros(1, dtype=np.int64)).to_bytes()
            if ask.kind == "sum" and isinstance(thing, Query):
                total = self._sum(ask, thing)
                return Answer(token, "refused" if total is None else "ok", total).to_bytes()
            return Answer(token, "malformed").to_bytes()
        except Exception:
            return Answer(token, "failed").to_bytes()

    def _fits(self, thing: Any) -> bool:
        """Whether a query is clipped and fits this node's rows: tried in plain NumPy, before anything compiled runs."""
        features = self._shard.cohort.n_features
        try:
            with np.errstate(all="ignore"):
                if isinstance(thing, HeadWork):
                    fits = 8 * math.prod(thing.shape) <= wire.LIMIT
                    return fits and thing.own(*made_up(features)).shape == thing.shape
                if not (isinstance(thing, Query) and thing.clipped and 8 * thing.coordinates <= wire.LIMIT):
                    return False
                rehearse(thing, *made_up(features))
        except Exception:
            return False
        return True

    def keep_heads(self, work: HeadWork) -> Path:
        """Fit every user's head and keep it here: one file, replaced whole, that only its owner can read."""
        cohort, heads = self._shard.cohort, None
        if not self.plain:
            with contextlib.suppress(Exception):
                heads = self._shard.users_map(work)
        if heads is None:
            pairs = zip(cohort.offsets[:-1], cohort.offsets[1:], strict=True)
            y = cohort.y if cohort.y is not None else np.zeros(cohort.n_rows)
            heads = np.array([_own_head(work, cohort.X[a:b], y[a:b]) for a, b in pairs])
        return write_heads(self._folder / "heads.npz", cohort.users, heads, np.asarray(getattr(work, "basis", 0.0)))

    def _sum(self, ask: Ask, query: Query) -> npt.NDArray[np.int64] | None:
        users = self._shard.cohort.n_users
        # To speak for some of its users only is for a coordinator that is trusted with the sum.
        if ask.chosen is not None and (self._trust != "central" or ask.chosen.shape != (users,)):
            return None
        losses = losses_in(query)
        if losses is not None:
            return self._losses(ask, query, losses)
        if not self._grid_is_sound(ask, query):
            return None
        # How far the coordinator is trusted was settled when the node joined; it is not to be talked out of it.
        if self._trust == "central":
            return self._exact(ask, query) if ask.sigma == 0.0 and not ask.group else None
        if not ask.sigma > 0.0 or ask.noise not in ("exact", "float"):
            return None
        if (self._trust == "secure") != bool(ask.group) or (ask.group and not self._group_is_sound(ask)):
            return None
        noisy = self._noisy(ask, query)
        if noisy is None or not ask.group:
            return noisy
        assert self._mask_key is not None
        from tacitly.federation.flower.masks import masked

        return masked(noisy, self.name, ask, self._mask_key, self._peers)

    def _losses(self, ask: Ask, query: Query, losses: Scores) -> npt.NDArray[np.int64] | None:
        """Sum of losses in whole steps, for a choice that the coordinator makes: it must be trusted with them."""
        users = self._shard.cohort.n_users
        plain = ask.sigma == 0.0 and not ask.group and ask.grid == 1.0 and ask.bound == losses.steps
        if self._trust != "central" or not plain or losses.steps * users >= 2**52:
            return None
        return self._shard.exact_sum(query, math.inf, 1.0, ask.chosen)

    def _group_is_sound(self, ask: Ask) -> bool:
        """Whether this node's share of the noise is what so many honest others make up for.

        How many that must be follows from the roster that this node was given, never from what it is asked.
        """
        others = set(ask.group) - {self.name}
        if self.name not in ask.group or len(set(ask.group)) != len(ask.group) or not others <= set(self._peers):
            return False
        honest = majority(len(self._peers) + 1)
        return ask.honest == honest and len(ask.group) >= least_group(len(self._peers) + 1, self._colluding)

    def _grid_is_sound(self, ask: Ask, query: Query) -> bool:
        """Whether rounding to the coordinator's grid stays within the clip's guard, and sums within 64 bits."""
        if not (ask.bound > 0 and ask.grid > 0) or math.frexp(ask.grid)[0] != 0.5:
            return False
        cohort = self._shard.cohort
        units = cohort.n_users if query.unit is Unit.USER else cohort.n_rows
        fine = ask.grid * math.sqrt(query.coordinates) <= ask.bound * GUARD / 2
        return fine and max((units + 1) * ask.bound, 64 * ask.sigma) <= ask.grid * 2.0**60

    def _exact(self, ask: Ask, query: Query) -> npt.NDArray[np.int64]:
        return self._shard.exact_sum(query, ask.bound, ask.grid, ask.chosen)

    def _noisy(self, ask: Ask, query: Query) -> npt.NDArray[np.int64] | None:
        """Sum with this node's noise, drawn once a release: debited here first, the same if it is asked for again."""
        acute = ask.clip_factor < 2.0
        sensitivity = Sensitivity.of_clip(ask.bound, acute=acute, unit=query.unit)
        if acute and not query.acute:
            return None
        # A share: together with those of enough honest others it is the noise that the event speaks of.
        shares = ask.honest if ask.group else 1
        sigma = ask.sigma / math.sqrt(shares)
        slack = shares * slack_of(sigma, ask.grid, query.coordinates)
        event = GaussianEvent(sigma=ask.sigma, sensitivity=sensitivity, slack=slack)
        with Ledger(self._folder / "node.ledger", ceiling=self._ceiling) as ledger:
            try:
                run = ledger.run(f"{ask.run}/{ask.step}", config={"digest": ask.question().hex()}, planned=[event])
                value = run.release(
                    ask.step,
                    event,
                    lambda: add_noise(self._exact(ask, query), sigma, ask.grid, ask.noise),  # type: ignore[arg-type]
                    noise=ask.noise,
                    grid=ask.grid,
                    coordinates=query.coordinates,
                )
            except RuntimeError:  # another question under this name, or more than the ceiling allows
                return None
        return np.rint(value / ask.grid).astype(np.int64)


def _own_head(work: HeadWork, X: Rows, y: Rows) -> npt.NDArray[np.float64]:
    """One user's head, or zeros where the user's numbers make the fit fail: that it did must not show in the answer."""
    try:
        with np.errstate(all="ignore"):
            head = np.asarray(work.own(X, y), dtype=np.float64)
            return head if head.shape == work.shape and np.isfinite(head).all() else np.zeros(work.shape)
    except Exception:
        return np.zeros(work.shape)


def least_group(nodes: int, colluding: int) -> int:
    """Nodes that a masked sum needs: a majority beside those that may help the coordinator, and never fewer than three.

    Every member knows its own share of the noise, so one of them is taken for colluding unless told otherwise.

    >>> least_group(3, 1), least_group(9, 1), least_group(3, 0)
    (3, 6, 3)
    """
    return max(3, majority(nodes) + colluding)


def majority(nodes: int) -> int:
    """Nodes whose noise must be enough: more than half of all.

    >>> majority(3), majority(4)
    (2, 3)
    """
    return nodes // 2 + 1


def write_heads(path: Path, users: npt.NDArray[Any], heads: npt.NDArray[np.float64], basis: Any) -> Path:
    """Write heads to a file that appears whole or not at all, and that only its owner can read."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(prefix=".heads-", dir=path.parent)  # made 0600
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, users=users, heads=heads, basis=basis)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        os.unlink(draft)
        raise
    return path


def read_heads(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Read what :func:`write_heads` wrote: ``users``, ``heads`` (intercept last) and the ``basis`` they are for."""
    with np.load(path, allow_pickle=False) as stored:
        return {name: stored[name] for name in ("users", "heads", "basis")}
