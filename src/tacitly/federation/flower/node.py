"""The node: holds rows, answers requests, keeps heads, and sends nothing else.

A node may hold one user or a million. It computes clipped contributions by the queries' NumPy definitions (so that it
starts without compiling), or by their compiled forms if it has many users and trusts the coordinator. A query runs on
synthetic rows before it runs on private ones. Errors are reported as one of four codes.

If the coordinator is not trusted with exact sums, the node adds noise itself. Its own ledger is debited before the
noise is drawn, and stores what was sent: a repeated question gets the same bytes, and a different question under the
same name gets no answer. So each release costs the node's users one event, however often it is requested.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Rows
from tacitly.data.cohort import Cohort
from tacitly.federation import wire
from tacitly.federation.base import Query
from tacitly.federation.flower.groups import TAG, check_colluding, least_group, majority
from tacitly.federation.flower.kept_heads import write_heads
from tacitly.federation.flower.messages import Answer, Ask
from tacitly.federation.forms import form_of
from tacitly.federation.projected import Projected, losses_in
from tacitly.federation.query import rehearse, synthetic_rows, widest
from tacitly.federation.scores import Scores
from tacitly.federation.shard import Shard
from tacitly.heads.base import HeadWork
from tacitly.privacy.clipping import GUARD
from tacitly.privacy.guarantee import Budget, GaussianEvent, Sensitivity, Unit
from tacitly.privacy.ledger import Ledger
from tacitly.privacy.noise import add_noise, slack_of

if TYPE_CHECKING:
    from tacitly.federation.flower.masks import Masks

ASK_SECONDS = 600.0
"""Work that an ask may cause, in seconds: what would take longer is refused, or not finished."""

_DIGEST = 32  # bytes of the digest of a question

_QUICK = 0.02  # seconds for a synthetic user of eight rows
_TIMES, _CELLS = 16, 1 << 22  # how often a synthetic user has each row, and how many numbers in all

FEW = 64
"""Number of users up to which a node answers in plain NumPy, because compiling would take longer."""


class Node:
    """Rows, and a folder for what must outlive the process: heads and the node's own ledger.

    ``trust`` is the trust model (see :mod:`tacitly.federation.flower.population`); ``ceiling`` limits what the node
    spends if it adds noise itself. For masked sums, ``mask_key`` is this node's private key and ``peers`` maps the
    names of the other nodes to their public keys; a group must be so large that it contains a majority of all nodes
    besides ``colluding`` ones.
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
        # Only the plain form clips whatever numbers a query holds, and a node must enforce the clip that it charges.
        self.plain = trust != "central" or cohort.n_users <= FEW
        self._shard = Shard(cohort, threads=threads, plain=self.plain)
        if trust != "central" and ceiling is None:
            raise ValueError(f"trust {trust!r} needs a ceiling for this node: a Budget with epsilon and delta.")
        self._trust, self._ceiling = trust, ceiling
        self._mask_key, self._peers, self._colluding = mask_key, dict(peers or {}), colluding
        if trust == "secure" and (mask_key is None or not self._peers):
            raise ValueError("trust 'secure' needs this node's mask_key and the public mask keys of its peers.")
        if trust == "secure":
            check_colluding(len(self._peers) + 1, colluding)
            self._ledger_id = self._first_ledger()

    @property
    def cohort(self) -> Cohort:
        """The users and rows of this node."""
        return self._shard.cohort

    def answer(self, data: bytes) -> bytes:
        """Answer an ask. Never raises, and reports nothing but a code about an error."""
        token = ""
        try:
            ask = Ask.from_bytes(data)
            token = ask.token
            thing = None if ask.kind in ("agree", "unmask") else wire.decode(ask.thing)
        except Exception:
            return Answer(token, "malformed").to_bytes()
        try:
            if thing is None:
                words = self._unmasked(ask)
                return Answer(token, "refused" if words is None else "ok", words).to_bytes()
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
        """Whether a query is clipped and fits this node's rows: run in plain NumPy before any compiled form."""
        features = self._shard.cohort.n_features
        try:
            with np.errstate(all="ignore"):
                if isinstance(thing, HeadWork):
                    if 8 * math.prod(thing.shape) > wire.LIMIT:
                        return False
                    if thing.own(*synthetic_rows(features)).shape != thing.shape:
                        return False
                    rows, targets = _many_rows(features)
                    if self.plain:
                        return self._affordable(lambda: thing.own(rows, targets))
                    return self._affordable(lambda: thing(rows, targets, np.array([0, len(rows)])), runs=2)
                if not (isinstance(thing, Query) and thing.clipped and 8 * widest(thing) <= wire.LIMIT):
                    return False
                rehearse(thing, *synthetic_rows(features))
                if self.plain:
                    return self._affordable(lambda: thing.contribution(*_many_rows(features)))
                return self._affordable(partial(self._sum_of_one, thing), runs=2, threads=self._shard.threads)
        except Exception:
            return False

    def _affordable(self, work: Callable[[], Any], runs: int = 1, threads: int = 0) -> bool:
        """Whether this work for all users takes less time than an ask may, judged by the last run for a synthetic user.

        The first of several runs may compile. With ``threads``, several users are processed at once. If one user takes
        at most :data:`_QUICK`, this is mostly the time of the call itself: the work is accepted, and the time is
        checked while users are summed.
        """
        for _ in range(runs):
            started = time.perf_counter()
            work()
        seconds = time.perf_counter() - started
        if threads and seconds <= _QUICK:
            return True
        return seconds * self._shard.cohort.n_users <= ASK_SECONDS * max(threads, 1)

    def _sum_of_one(self, query: Query) -> None:
        """Sum one synthetic user by the form that sums this node's, as far as that form can read such a user."""
        cohort = self._shard.cohort
        inner, features = query, cohort.n_features
        if isinstance(query, Projected):
            inner, features = query.query, len(query.directions)
        rows, targets = synthetic_rows(features)
        with contextlib.suppress(Exception):
            form_of(inner, cohort.n_users, features).block_sums(rows, targets, np.array([0, len(rows)]), 1.0, 1)

    def keep_heads(self, work: HeadWork) -> Path:
        """Fit and store every user's head, in one file that is replaced atomically and readable by its owner only."""
        cohort, heads = self._shard.cohort, None
        end = time.monotonic() + ASK_SECONDS
        if not self.plain:
            with contextlib.suppress(Exception):
                heads = self._shard.users_map(work, end=end)
        if heads is None:
            pairs = zip(cohort.offsets[:-1], cohort.offsets[1:], strict=True)
            y = cohort.y if cohort.y is not None else np.zeros(cohort.n_rows)
            heads = np.array([_head_or_zeros(work, cohort.X[a:b], y[a:b], end) for a, b in pairs])
        return write_heads(self._folder / "heads.npz", cohort.users, heads, work)

    def _sum(self, ask: Ask, query: Query) -> npt.NDArray[np.int64] | None:
        users = self._shard.cohort.n_users
        # Only a coordinator that is trusted with sums may ask about some of the users.
        if ask.chosen is not None and (self._trust != "central" or ask.chosen.shape != (users,)):
            return None
        losses = losses_in(query)
        if losses is not None:
            return self._losses(ask, query, losses)
        if not self._grid_is_sound(ask, query):
            return None
        # The trust model was fixed when the node joined; an ask cannot change it.
        if self._trust == "central":
            return self._exact(ask, query) if ask.sigma == 0.0 and not ask.group else None
        if not ask.sigma > 0.0 or ask.noise not in ("exact", "float"):
            return None
        if (self._trust == "secure") != bool(ask.group):
            return None
        # All nodes are asked; who is in the group is decided when their answers have arrived.
        if ask.group and not (self._group_is_sound(ask) and len(ask.group) == len(self._peers) + 1):
            return None
        if ask.group and ask.noise != "exact":
            return None
        noisy = self._noisy(ask, query)
        return noisy if noisy is None or not ask.group else self._masks.hide(noisy, self._question(ask))

    def _question(self, ask: Ask) -> bytes:
        return ask.question(self._masks.roster if ask.group else b"")

    def _first_ledger(self) -> str:
        """Return the id of the ledger that this node began with, which is noted beside its keys.

        Without its ledger a node would draw fresh noise under the same mask, and vote twice.
        """
        note = self._folder / "node.ledger.id"
        with Ledger(self._folder / "node.ledger", ceiling=self._ceiling) as ledger:
            found = ledger.id
        if not note.exists():
            note.write_text(found, encoding="utf-8")
        if note.read_text(encoding="utf-8") != found:
            raise ValueError(
                f"{self._folder / 'node.ledger'} is not the ledger that this site began with, which is lost. "
                "Make a new folder for the site, which has new keys, and send its card to the coordinator."
            )
        return found

    @cached_property
    def _masks(self) -> Masks:
        from tacitly.federation.flower.masks import Masks

        assert self._mask_key is not None
        return Masks(self.name, self._mask_key, self._peers, self._colluding)

    def _unmasked(self, ask: Ask) -> npt.NDArray[np.int64] | None:
        """Vote for the group of a masked sum, or add up shares of its masks once enough others have voted for it.

        A ledger's run is opened once with one configuration: so a node takes part in one group per question.
        """
        question, rest = ask.thing[:_DIGEST], ask.thing[_DIGEST:]
        if self._trust != "secure" or len(question) < _DIGEST or not self._group_is_sound(ask):
            return None
        try:
            with Ledger(self._folder / "node.ledger", ceiling=self._ceiling) as ledger:
                if ledger.id != self._ledger_id:
                    return None
                ledger.run(f"group of {question.hex()}", config={"group": list(ask.group)})
        except RuntimeError:  # another group
            return None
        if ask.kind == "agree":
            return self._masks.vote(question, ask.group) if not rest else None
        votes = TAG * len(self._peers)
        return self._masks.unmask(question, ask.group, rest[:votes], rest[votes:]) if len(rest) > votes else None

    def _losses(self, ask: Ask, query: Query, losses: Scores) -> npt.NDArray[np.int64] | None:
        """Return the sum of losses in integer steps, for a choice by a coordinator that is trusted with sums."""
        users = self._shard.cohort.n_users
        plain = ask.sigma == 0.0 and not ask.group and ask.grid == 1.0 and ask.bound == losses.steps
        if self._trust != "central" or not plain or losses.steps * users >= 2**52:
            return None
        return self._shard.exact_sum(query, math.inf, 1.0, ask.chosen, end=time.monotonic() + ASK_SECONDS)

    def _group_is_sound(self, ask: Ask) -> bool:
        """Whether the group has enough honest nodes for their shares of the noise to add up to what is charged.

        The required number follows from the roster that this node was given, never from the ask.
        """
        if list(ask.group) != sorted(set(ask.group)) or not set(ask.group) <= {self.name, *self._peers}:
            return False
        honest = majority(len(self._peers) + 1)
        return ask.honest == honest and len(ask.group) >= least_group(len(self._peers) + 1, self._colluding)

    def _grid_is_sound(self, ask: Ask, query: Query) -> bool:
        """Whether rounding to the coordinator's grid stays within the clip's guard, and sums fit into 64 bits."""
        if not (ask.bound > 0 and ask.grid > 0) or math.frexp(ask.grid)[0] != 0.5:
            return False
        cohort = self._shard.cohort
        units = cohort.n_users if query.unit is Unit.USER else cohort.n_rows
        fine = ask.grid * math.sqrt(query.coordinates) <= ask.bound * GUARD / 3
        return fine and max((units + 1) * ask.bound, 64 * ask.sigma) <= ask.grid * 2.0**60

    def _exact(self, ask: Ask, query: Query) -> npt.NDArray[np.int64]:
        return self._shard.exact_sum(query, ask.bound, ask.grid, ask.chosen, end=time.monotonic() + ASK_SECONDS)

    def _noisy(self, ask: Ask, query: Query) -> npt.NDArray[np.int64] | None:
        """Return the sum with this node's noise: debited first, drawn once per release, the same if asked again.

        Slack of a shared noise. Let m = ``honest`` shares of scale s (in steps of the grid) and η = 200·D/s², the slack
        of one share (:mod:`tacitly.privacy.noise`). Each share is within e^±(η/3) of a discrete Gaussian; a sum of m
        discrete Gaussians of scale s is within a negligible factor of one of scale s√m (Kairouz, Liu and Steinke 2021);
        that one is within e^±(η/3m) of the rounded Gaussian that the event describes. Together: less than mη. (Mode
        ``float`` rounds each share to coarser cells, for which this bound would not be negligible: shares are exact.)
        """
        acute = ask.clip_factor < 2.0
        sensitivity = Sensitivity.of_clip(ask.bound, acute=acute, unit=query.unit)
        if acute and not query.acute:
            return None
        # The shares of ``honest`` nodes add up to the noise that the event describes.
        shares = ask.honest if ask.group else 1
        sigma = ask.sigma / math.sqrt(shares)
        slack = shares * slack_of(sigma, ask.grid, query.coordinates)
        event = GaussianEvent(sigma=ask.sigma, sensitivity=sensitivity, slack=slack)
        with Ledger(self._folder / "node.ledger", ceiling=self._ceiling) as ledger:
            if ask.group and ledger.id != self._ledger_id:
                return None
            try:
                run = ledger.run(f"{ask.run}/{ask.step}", config={"digest": self._question(ask).hex()}, planned=[event])
                value = run.release(
                    ask.step,
                    event,
                    lambda: add_noise(self._exact(ask, query), sigma, ask.grid, ask.noise),  # type: ignore[arg-type]
                    noise=ask.noise,
                    grid=ask.grid,
                    coordinates=query.coordinates,
                )
            except RuntimeError:  # a different question under this name, or the ceiling is reached
                return None
        return np.rint(value / ask.grid).astype(np.int64)


def _many_rows(features: int) -> tuple[Rows, Rows]:
    """Return a synthetic user with as many rows as a user contributes to a round of a network, 128; fewer wide ones.

    What work costs with few rows says little about users: it may grow with their rows, or start with them.
    """
    rows, targets = synthetic_rows(features)
    times = max(1, min(_TIMES, _CELLS // rows.size))
    return np.tile(rows, (times, 1)), np.tile(targets, times)


def _head_or_zeros(work: HeadWork, X: Rows, y: Rows, end: float = math.inf) -> npt.NDArray[np.float64]:
    """Return one user's head, or zeros if the user's numbers make the fit fail, which must not show in the answer.

    Zeros, too, once the time for the ask is over.
    """
    if time.monotonic() > end:
        return np.zeros(work.shape)
    try:
        with np.errstate(all="ignore"):
            head = np.asarray(work.own(X, y), dtype=np.float64)
            return head if head.shape == work.shape and np.isfinite(head).all() else np.zeros(work.shape)
    except Exception:
        return np.zeros(work.shape)
