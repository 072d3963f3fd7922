"""The doors.

:meth:`Federation.release` is the way from private rows to public numbers: a sum over users of clipped contributions,
plus Gaussian noise, written into the ledger before it is drawn. :meth:`Federation.select` is the only other one: the
index of a public candidate, chosen by sums of bounded losses (:mod:`tacitly.federation.scores` says why that is
private).

Why a release is as private as its event says (Lemma 0 of the specification). Fix what is public so far. A query
sees one user's rows and public fields only, so changing one user's data changes one summand. The clip is the last
thing done to it, so it moves by at most the clip C (2C under replace-one; √2·C if contributions are acute). Noise
level, clip, grid and number of users are public, so the two noisy sums are Gaussians with one covariance and means
no further apart than that. Nothing else is returned.

Rounding. A contribution is computed from its own user's rows by arithmetic that does not depend on anybody else's, to
the last bit: fused forms may share a matrix product across users only for adding contributions up, never before they
are normalised or clipped (a last bit that moves with a neighbour's row count can be blown up to a whole clip).
Contributions are added in blocks of a fixed number of users (or rows, where the unit is the row), each block's sum is
rounded to the grid and blocks are added as integers, exactly. A user therefore touches the rounding of its own block
only: at most R·B·2⁻⁵³ clips for a block of B units and R rows, below 2⁻²² up to two million rows a block, and covered
by the clip's guard of 2⁻²⁰. The sum does not depend on the order of blocks, the number of threads or of machines.

Who adds the noise. ``trust="central"``: the process that adds up. ``trust="local"``: every user (a device, a hospital)
adds noise of standard deviation σ to its own message, and the sum carries σ√n. The event then describes one message,
which is all that a curious server has of a user; a row lies in one message only, so messages do not add up.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Array, Rows
from tacitly.federation.query import Query, made_up, rehearse
from tacitly.privacy import noise as noise_source
from tacitly.privacy.clipping import GUARD
from tacitly.privacy.guarantee import GaussianEvent, SelectionEvent, Sensitivity, Unit
from tacitly.privacy.ledger import Run
from tacitly.privacy.noise import Mode

__all__ = ["BLOCK", "ROW_BLOCK", "Chosen", "Federation", "Made", "Query"]

Chosen = npt.NDArray[np.bool_]
Noisy = Callable[[npt.NDArray[np.int64], int], Array]

BLOCK = 1024
"""Users in a block: public and fixed, so that where a block ends never depends on anybody's rows."""

ROW_BLOCK = 16384
"""Most rows in a block where the unit is the row (and so the number of rows public)."""


@dataclass
class Made:
    """How many releases were made; one count for all that look at the same users, so that no seed is used twice."""

    releases: int = 0


class Federation(ABC):
    """Users somewhere, reachable only through :meth:`release` and :meth:`select`.

    ``run`` is the ledger's account of this run; ``noise`` one of ``auto``, ``exact`` and ``float``. A
    ``noise_seed`` makes noise reproducible, and the run uncertified. ``on_release`` is told the name of each
    release when it is out (for progress bars).
    """

    same_again: ClassVar[bool] = False
    """Whether users who add noise send the very same message when they are asked the same thing again."""

    def __init__(
        self,
        run: Run,
        *,
        noise: str = "auto",
        noise_seed: int | None = None,
        on_release: Callable[[str], None] | None = None,
        trust: str = "central",
    ) -> None:
        if noise not in ("auto", "exact", "float"):
            raise ValueError(f"noise must be 'auto', 'exact' or 'float'. Found {noise!r}.")
        if trust not in ("central", "local"):
            raise ValueError(f"trust must be 'central' or 'local'. Found {trust!r}.")
        self.ledger_run = run
        self.trust = trust
        self.sparse = False
        self._through: Array | None = None  # a projection that rows went through before they are asked about
        self._noise = noise
        self._noise_seed = noise_seed
        self._made = Made()
        self._again = True
        self._on_release = on_release

    @property
    @abstractmethod
    def n_users(self) -> int:
        """Length of the roster: public."""

    @property
    @abstractmethod
    def n_features(self) -> int:
        """Columns of everybody's rows: public."""

    @property
    @abstractmethod
    def n_rows(self) -> int:
        """How many rows there are. Public only where the unit is the row; used for nothing else."""

    @abstractmethod
    def _exact_sum(
        self, query: Query, bound: float, grid: float, chosen: Chosen | None = None
    ) -> npt.NDArray[np.int64]:
        """Sum of all (or the chosen) users' clipped contributions, in steps of the grid."""

    @abstractmethod
    def users_map(self, work: Callable[[Rows, Rows, npt.NDArray[np.int64]], Array]) -> Array | None:
        """Let every user do ``work`` at home: a row a user, private, or None where it stays with them.

        Engines whose users are elsewhere take work that is data (:class:`~tacitly.heads.base.HeadWork`), never code.
        """

    @abstractmethod
    def projected(self, directions: Array) -> Federation:
        """Return the same users behind the same doors, with rows directions·x: a public map, row by row, at home."""

    @property
    def how_to_go_on(self) -> str:
        """What to do about a release that could not be made."""
        if self._again:
            return "start the same run again to go on"
        return "answers of it may have been seen, so it is not drawn again. Begin another run"

    def sum_sigma(self, event: GaussianEvent, messages: int | None = None) -> float:
        """Noise that the sum of everybody's (or of so many) messages carries: larger than σ where users add it."""
        return event.sigma * (math.sqrt(messages or self.n_users) if self.trust == "local" else 1.0)

    def group_of(self, turns: int, turn: int) -> Chosen:
        """Who answers in this turn, of so many: public."""
        return np.asarray(np.arange(self.n_users) % turns == turn)

    def release(self, query: Query, event: GaussianEvent, name: str) -> Array:
        """Return the noisy sum of everybody's contributions to ``query``, clipped as ``event`` says.

        The ledger is debited before anything is drawn; a release that was already made (a resumed run) is
        read from the ledger and no private row is touched. Where the event samples, every user takes part with
        that probability, by a coin that nobody sees.
        """
        rate = event.sampling_rate
        if rate < 1.0 and (query.unit is not Unit.USER or self.trust != "central"):
            raise ValueError(
                "sampling hides only whole users, and only from those who do not see who answers. "
                f"Found unit {query.unit} and trust {self.trust!r}: use sampling_rate=1."
            )

        def draw(grid: float, noisy: Noisy) -> Array:
            bound = event.sensitivity.zero_out
            if rate == 1.0:
                return noisy(self._exact_sum(query, bound, grid), self.n_users)
            return noisy(self._exact_sum(query, bound, grid, noise_source.coins(self.n_users, rate)), self.n_users)

        return self._debit_and_draw(
            [query], event, name, draw, seen_early=self.trust == "local" and not self.same_again
        )

    def release_each(self, queries: Sequence[Query], event: GaussianEvent, name: str) -> Array:
        """Return every user's own noisy answer, a row a user, to a query of its own: no sum, local trust.

        One event: queries are public, a row (and so a user) lies in one answer, and the others do not change with it.
        """
        _check_everybody_asked(event)
        if len(queries) != self.n_users:
            raise ValueError(f"there must be a query a user, {self.n_users}. Found {len(queries)}.")

        def draw(grid: float, noisy: Noisy) -> Array:
            bound, answers = event.sensitivity.zero_out, []
            for user, query in enumerate(queries):
                chosen = np.zeros(self.n_users, dtype=bool)
                chosen[user] = True
                answers.append(noisy(self._exact_sum(query, bound, grid, chosen), 1))
            return np.array(answers)

        return self._debit_and_draw(queries, event, name, draw, copies=self.n_users, seen_early=True)

    def release_in_turns(
        self, asks: Callable[[list[Array]], Query], turns: int, event: GaussianEvent, name: str
    ) -> Array:
        """Ask the users in ``turns`` public groups, one after the other; return a noisy sum a turn.

        ``asks`` makes the next query from what earlier turns released. One event: every user answers in one turn, so
        given the turns before it, one Gaussian moves by the clip; the turns after it are a function of what is out.
        """
        _check_everybody_asked(event)
        if not 1 <= turns <= self.n_users:
            raise ValueError(f"turns must lie between 1 and the number of users ({self.n_users}). Found {turns}.")
        first = asks([])
        asked = [first]

        def draw(grid: float, noisy: Noisy) -> Array:
            out: list[Array] = []
            for turn in range(turns):
                query = asks(out) if turn else first
                asked[turn:] = [query]
                self._check(query, event)
                if query.coordinates != first.coordinates:
                    raise ValueError(f"turns must ask for {first.coordinates} numbers each. Found {query.coordinates}.")
                group = self.group_of(turns, turn)
                total = self._exact_sum(query, event.sensitivity.zero_out, grid, group)
                out.append(noisy(total, int(np.count_nonzero(group))))
            self.ledger_run.asked(asked, self._through)
            return np.array(out)

        return self._debit_and_draw([first], event, name, draw, copies=turns, seen_early=True)

    def select(self, query: Query, event: SelectionEvent, name: str) -> int:
        """Return the index of a candidate with about the least sum of everybody's losses, as private as ``event`` says.

        ``query`` must be a :class:`~tacitly.federation.scores.Scores`: what bounds a loss is in there, not here.
        Debited before it is drawn and read from the ledger on resuming, like :meth:`release`. Only the index leaves.
        """
        from tacitly.federation.scores import Scores  # a Query, so it imports this module

        if not isinstance(query, Scores):
            raise ValueError(f"a choice is made by losses, a Scores query. Found {type(query).__name__}.")
        if query.unit is not Unit.USER or event.sensitivity.unit is not Unit.USER or self.trust != "central":
            raise ValueError(
                "a choice protects whole users and needs one place to add up their losses. "
                f"Found unit {query.unit} and trust {self.trust!r}."
            )
        if not 1 <= query.steps * self.n_users < 2**52:
            raise ValueError(
                f"losses in {query.steps} steps of {self.n_users} users do not add up exactly: take fewer."
            )
        self._rehearse(query)
        generator = self._generator()
        mode: Mode = "none" if not event.private else "exact" if generator is None else "seeded"
        # In whole steps, and rounded up: never less noise than the event says.
        scale = math.nextafter(event.scale * query.steps, math.inf) if event.private else 0.0

        def draw() -> Array:
            totals = self._exact_sum(query, math.inf, 1.0)
            return np.array([noise_source.choose(totals, scale, mode, generator)], dtype=np.float64)

        self._again = True
        self.ledger_run.asked([query], self._through)
        value = self.ledger_run.release(
            name, event, draw, noise=mode, grid=1.0 / query.steps, coordinates=query.coordinates
        )
        if self._on_release is not None:
            self._on_release(name)
        return int(value[0])

    def _generator(self) -> np.random.Generator | None:
        """One generator a release, so that a resumed seeded run goes on where it was; none unless noise is seeded."""
        self._made.releases += 1
        return np.random.default_rng([self._noise_seed, self._made.releases]) if self._noise_seed is not None else None

    def _check(self, query: Query, event: GaussianEvent) -> None:
        """Raise unless the event is what this query costs and the query runs; no private row is touched."""
        from tacitly.federation.scores import Scores

        if isinstance(query, Scores):
            raise ValueError(
                f"losses are not clipped, so their sums go through select only. Found {type(query).__name__}."
            )
        expected = Sensitivity.of_clip(event.sensitivity.zero_out, acute=query.acute, unit=query.unit)
        if event.sensitivity != expected:
            raise ValueError(
                f"the event's sensitivity does not belong to {type(query).__name__}: expected {expected}. "
                f"Found {event.sensitivity}."
            )
        if event.private and not query.clipped:
            raise ValueError(f"{type(query).__name__} is not clipped: no noise makes a sum of it private.")
        self._rehearse(query)

    def _debit_and_draw(
        self,
        queries: Sequence[Query],
        event: GaussianEvent,
        name: str,
        draw: Callable[[float, Noisy], Array],
        *,
        copies: int = 1,
        seen_early: bool = False,
    ) -> Array:
        """Check, debit, then let ``draw`` add up on the grid and put noise on what it added up.

        ``seen_early``: somebody else sees answers before all of the release is out (a server its users' messages, a
        group what the one before it said), so that it cannot be drawn again for nothing.
        """
        for query in {id(query): query for query in queries}.values():
            self._check(query, event)
        query, bound = queries[0], event.sensitivity.zero_out
        if any(other.coordinates != query.coordinates for other in queries):
            raise ValueError(
                f"queries of one release must ask for as many numbers each as the first: {query.coordinates}."
            )
        units = self.n_users if query.unit is Unit.USER else self.n_rows
        grid = noise_source.grid_of(bound, self.sum_sigma(event), units)
        if grid * math.sqrt(query.coordinates) > bound * GUARD / 2:
            raise ValueError(
                f"{query.coordinates} coordinates of {units} units do not fit the integer grid. "
                "Release fewer coordinates at a time."
            )
        coordinates = query.coordinates * copies
        mode = self._mode(event, coordinates)
        event = replace(event, slack=noise_source.slack_of(event.sigma, grid, coordinates))
        generator = self._generator()

        def noisy(total: npt.NDArray[np.int64], messages: int) -> Array:
            return self._put_noise(total, self.sum_sigma(event, messages), grid, mode, generator)

        self._again = not seen_early or not event.private
        self.ledger_run.asked(queries, self._through)
        value = self.ledger_run.release(
            name,
            event,
            lambda: draw(grid, noisy),
            noise=mode,
            grid=grid,
            coordinates=coordinates,
            again=self._again,
        )
        if self._on_release is not None:
            self._on_release(name)
        return value

    def _put_noise(
        self,
        total: npt.NDArray[np.int64],
        sigma: float,
        grid: float,
        mode: Mode,
        generator: np.random.Generator | None,
    ) -> Array:
        """Put noise on a sum; engines whose users have done so already only bring it to scale."""
        return noise_source.add_noise(total, sigma, grid, mode, generator)

    def _rehearse(self, query: Query) -> None:
        """Run the query on made-up rows, so that a mistake in it shows before any private row is touched."""
        rows, targets = made_up(self.n_features)
        kinds: list[Any] = [rows]
        if self.sparse:
            import scipy.sparse

            kinds.append(scipy.sparse.csr_matrix(np.where(rows > 0, rows, 0.0)))
        for kind in kinds:
            rehearse(query, kind, targets)
            rehearse(query, kind, targets, lambda X, y: query.block_sum(X, y, np.array([0, 8]), 1.0))

    def _mode(self, event: GaussianEvent, coordinates: int) -> Mode:
        if not event.private:
            return "none"
        if self._noise_seed is not None:
            return "seeded"
        if self._noise == "auto":
            return noise_source.default_mode(coordinates)
        return "exact" if self._noise == "exact" else "float"


def _check_everybody_asked(event: GaussianEvent) -> None:
    if event.sampling_rate != 1.0:
        raise ValueError(
            "everybody is asked here; an event with a sampling rate would be charged less than it costs. "
            f"Found sampling_rate {event.sampling_rate!r}."
        )
