"""The doors: the two methods that release anything computed from private rows.

:meth:`Federation.release` returns a sum over users of clipped contributions plus Gaussian noise, debited in the ledger
before it is drawn. :meth:`Federation.select` returns the index of a public candidate, chosen by sums of bounded losses
(proof: :mod:`tacitly.federation.scores`). Nothing else is released.

Adjacency, sensitivity, event. Condition on everything that was released before. A query is a function of the rows of
one user and of public fields, so changing one user's data changes one summand. Clipping is the last operation on that
summand, so the sum moves by at most the sensitivity of the clip (:class:`~tacitly.privacy.guarantee.Sensitivity`: one
bound for each adjacency). Noise level, clip, grid and number of users are public, so the noisy sums of two neighbours
are Gaussians with the same covariance and with means at most that far apart: a
:class:`~tacitly.privacy.guarantee.GaussianEvent`. Nothing else is returned. That queries really clip is checked
separately: :mod:`tacitly.federation.bounds`.

Rounding. The bound holds for the floating-point sums that are computed, not only for ideal ones:

* The arithmetic of a contribution depends on its own user's rows only, to the last bit. Fused forms may use one matrix
  product over several users to add contributions, but only after these are normalised or clipped: before that, a last
  bit that changes with another user's number of rows could be amplified to a whole clip.
* Contributions are added in blocks with a fixed number of users (or rows, if the unit is the row). Each block's sum is
  rounded to the grid, and the blocks are added exactly, as integers. Hence a user affects the rounding of one block
  only, and the sum does not depend on the order of blocks or on the number of threads and machines.
* A block of B units and R rows takes R additions to partial sums of norm at most B clips, so its error is at most
  R·B·2⁻⁵³ clips: below 2⁻²² for up to two million rows. Two neighbours differ by at most twice that. Rounding to a grid
  of spacing γ moves D coordinates by at most γ√D/2, and apart by at most 3γ√D/2: if users are sampled, a block is two
  without a user in its middle. γ√D is checked to be at most a third of 2⁻²⁰ clips. The total is at most 2⁻²⁰ clips,
  which is the margin that clipping leaves (:mod:`tacitly.privacy.clipping`).

Who adds the noise. With ``trust="central"``, the process that adds the contributions. With ``trust="local"``, every
user (a device, a hospital) adds noise of standard deviation σ to its own message, and the sum of n messages has noise
of standard deviation σ√n. The event then describes one message, which is all that a curious server receives from a
user; a row enters one message only, so the costs of different users' messages do not add up.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, Self

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Array, Rows
from tacitly.federation.bounds import check_form
from tacitly.federation.projected import Projected, losses_in
from tacitly.federation.query import Chosen, Query, rehearse, synthetic_rows
from tacitly.federation.scores import Scores
from tacitly.privacy import noise as noise_source
from tacitly.privacy.clipping import GUARD
from tacitly.privacy.guarantee import GaussianEvent, SelectionEvent, Sensitivity, Unit
from tacitly.privacy.ledger import Run
from tacitly.privacy.noise import Mode

__all__ = ["Chosen", "Federation", "Query", "ReleaseCounter", "Roster"]

AddNoise = Callable[[npt.NDArray[np.int64], int], Array]
"""Adds noise to a sum on the grid, given how many messages it is the sum of."""


class Roster(Protocol):
    """Public facts about the users of a federation."""

    @property
    def n_users(self) -> int:
        """Number of users."""

    @property
    def n_features(self) -> int:
        """Number of columns of every user's rows."""

    @property
    def n_rows(self) -> int:
        """Total number of rows. Public only if the unit is the row, and used only then."""


@dataclass
class ReleaseCounter:
    """Number of releases made, shared by all views of the same users so that no noise seed is used twice."""

    releases: int = 0


_CHECKED_FORMS: set[Hashable] = set()


def _kind(query: Query) -> Hashable:
    """Return what a query is besides its numbers: classes, and the size of what it returns."""
    inner = [_kind(part) for part in vars(query).values() if isinstance(part, Query)]
    return type(query), query.coordinates, query.unit, query.acute, query.clipped, tuple(inner)


class Federation(ABC):
    """Users, reachable only through :meth:`release` (with its variants) and :meth:`select`.

    ``run`` is the ledger's account of this run; ``noise`` is ``auto``, ``exact`` or ``float``. ``noise_seed`` makes the
    noise reproducible and the run uncertified. ``on_release`` is called with the name of each completed release (for
    progress bars).
    """

    resends_same_messages: ClassVar[bool] = False
    """Whether users who add their own noise answer a repeated question with an identical message."""

    def __init__(
        self,
        roster: Roster,
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
        self._roster = roster
        self._directions: Array | None = None
        self._noise = noise
        self._noise_seed = noise_seed
        self._counter = ReleaseCounter()
        self._repeatable = True  # whether the current release may be drawn again after an interruption
        self._on_release = on_release

    @property
    def n_users(self) -> int:
        """Number of users on the roster: public."""
        return self._roster.n_users

    @property
    def n_features(self) -> int:
        """Number of columns of every user's (projected) rows: public."""
        return self._roster.n_features if self._directions is None else len(self._directions)

    @property
    def n_rows(self) -> int:
        """Total number of rows. Public only if the unit is the row, and used only then."""
        return self._roster.n_rows

    @abstractmethod
    def _collect(self, query: Query, bound: float, grid: float, chosen: Chosen | None = None) -> npt.NDArray[np.int64]:
        """Return the sum of all (or the chosen) users' clipped contributions, in steps of the grid."""

    @abstractmethod
    def users_map(self, work: Callable[[Rows, Rows, npt.NDArray[np.int64]], Array]) -> Array | None:
        """Run ``work`` where each user's rows are. Return one private row per user, or None if results stay there.

        Engines with remote users accept work that is data (:class:`~tacitly.heads.base.HeadWork`), never code.
        """

    def projected(self, directions: Array) -> Self:
        """Return a view of the same users, behind the same doors, with rows directions·x.

        See :mod:`tacitly.federation.projected`. Both views share one release counter and one ledger run.
        """
        view = copy.copy(self)
        view._directions = directions if self._directions is None else directions @ self._directions
        return view

    @property
    def recovery_hint(self) -> str:
        """What to do after a release that could not be completed."""
        if self._repeatable:
            return "start the same run again to resume it"
        return "answers to it may have been seen, so it cannot be drawn again. Start a new run"

    def sum_sigma(self, event: GaussianEvent, messages: int | None = None) -> float:
        """Noise standard deviation of the sum of all (or of ``messages``) users' messages: σ√n if users add noise."""
        return event.sigma * (math.sqrt(messages or self.n_users) if self.trust == "local" else 1.0)

    def group_of(self, turns: int, turn: int) -> Chosen:
        """Users who answer in turn number ``turn`` of ``turns``: public."""
        return np.asarray(np.arange(self.n_users) % turns == turn)

    def release(self, query: Query, event: GaussianEvent, name: str) -> Array:
        """Return the noisy sum of all users' contributions to ``query``, clipped as ``event`` states.

        The ledger is debited before noise is drawn. A release that was already published (in a resumed run) is read
        from the ledger, without touching private rows. If the event has a sampling rate, every user takes part with
        that probability, by a coin that nobody sees.
        """
        rate = event.sampling_rate
        if rate < 1.0 and (query.unit is not Unit.USER or self.trust != "central"):
            raise ValueError(
                "sampling hides only whole users, and only if nobody sees who answers. "
                f"Found unit {query.unit} and trust {self.trust!r}: use sampling_rate=1."
            )

        def draw(grid: float, add_noise: AddNoise) -> Array:
            bound = _bound(query, event)
            if rate == 1.0:
                return add_noise(self._exact_sum(query, bound, grid), self.n_users)
            coins = noise_source.coins(self.n_users, rate)
            return add_noise(self._exact_sum(query, bound, grid, coins), self.n_users)

        seen_early = self.trust == "local" and not self.resends_same_messages
        return self._debit_and_draw([query], event, name, draw, seen_early=seen_early)

    def release_each(self, queries: Sequence[Query], event: GaussianEvent, name: str) -> Array:
        """Return each user's noisy answer to that user's own query, one row per user: no sum, local trust.

        All answers together cost one event: the queries are public, and a user's data enter one answer only.
        """
        _check_no_sampling(event)
        if len(queries) != self.n_users:
            raise ValueError(f"there must be one query per user, {self.n_users}. Found {len(queries)}.")

        def draw(grid: float, add_noise: AddNoise) -> Array:
            answers = []
            for user, query in enumerate(queries):
                bound = _bound(query, event)
                chosen = np.zeros(self.n_users, dtype=bool)
                chosen[user] = True
                answers.append(add_noise(self._exact_sum(query, bound, grid, chosen), 1))
            return np.array(answers)

        return self._debit_and_draw(queries, event, name, draw, copies=self.n_users, seen_early=True)

    def release_in_turns(
        self, asks: Callable[[list[Array]], Query], turns: int, event: GaussianEvent, name: str
    ) -> Array:
        """Query the users in ``turns`` public groups, one after the other; return one noisy sum per turn.

        ``asks`` builds the next query from the sums of earlier turns. All turns together cost one event: a user answers
        in one turn. The turns before it do not depend on that user, in it one Gaussian moves by at most the
        sensitivity, and the turns after it depend on that user only through what is already public.
        """
        _check_no_sampling(event)
        if not 1 <= turns <= self.n_users:
            raise ValueError(f"turns must lie between 1 and the number of users ({self.n_users}). Found {turns}.")
        first = asks([])
        asked = [first]

        def draw(grid: float, add_noise: AddNoise) -> Array:
            sums: list[Array] = []
            for turn in range(turns):
                query = asks(sums) if turn else first
                asked[turn:] = [query]
                self._check(query, event)
                if query.coordinates != first.coordinates:
                    raise ValueError(
                        f"every turn must ask for {first.coordinates} coordinates, as the first does. "
                        f"Found {query.coordinates}."
                    )
                group = self.group_of(turns, turn)
                total = self._exact_sum(query, _bound(query, event), grid, group)
                sums.append(add_noise(total, int(np.count_nonzero(group))))
            self.ledger_run.asked(asked, self._directions)
            return np.array(sums)

        return self._debit_and_draw([first], event, name, draw, copies=turns, seen_early=True)

    def select(self, query: Query, event: SelectionEvent, name: str) -> int:
        """Return the index of a candidate with approximately the smallest total loss, as private as ``event`` states.

        ``query`` must be a :class:`~tacitly.federation.scores.Scores`, which bounds the losses. Debited before it is
        drawn, and read from the ledger in a resumed run, like :meth:`release`. Only the index leaves.
        """
        if not isinstance(query, Scores):
            raise ValueError(f"select needs losses from a Scores query. Found {type(query).__name__}.")
        if query.unit is not Unit.USER or event.sensitivity.unit is not Unit.USER or self.trust != "central":
            raise ValueError(
                "select protects whole users and needs trust 'central', because one process adds up their losses. "
                f"Found unit {query.unit} and trust {self.trust!r}."
            )
        if not 1 <= query.steps * self.n_users < 2**52:
            raise ValueError(
                f"steps times users must be below 2^52 for an exact sum. Found {query.steps} steps and "
                f"{self.n_users} users: use fewer steps."
            )
        self._rehearse(query, math.inf)
        generator = self._generator()
        mode: Mode = "none" if not event.private else "exact" if generator is None else "seeded"
        # In units of steps, rounded up: never less noise than the event states.
        scale = math.nextafter(event.scale * query.steps, math.inf) if event.private else 0.0

        def draw() -> Array:
            totals = self._exact_sum(query, math.inf, 1.0)
            return np.array([noise_source.choose(totals, scale, mode, generator)], dtype=np.float64)

        self._repeatable = True
        self.ledger_run.asked([query], self._directions)
        value = self.ledger_run.release(
            name, event, draw, noise=mode, grid=1.0 / query.steps, coordinates=query.coordinates
        )
        if self._on_release is not None:
            self._on_release(name)
        return int(value[0])

    def _exact_sum(
        self, query: Query, bound: float, grid: float, chosen: Chosen | None = None
    ) -> npt.NDArray[np.int64]:
        """Return :meth:`_collect` of the query, about projected rows if this is a projected view."""
        asked = query if self._directions is None else Projected(query, self._directions)
        return self._collect(asked, bound, grid, chosen)

    def _generator(self) -> np.random.Generator | None:
        """Return a new generator for this release if noise is seeded, so that a resumed run continues its sequence."""
        self._counter.releases += 1
        if self._noise_seed is None:
            return None
        return np.random.default_rng([self._noise_seed, self._counter.releases])

    def _check(self, query: Query, event: GaussianEvent) -> None:
        """Raise unless the event is what this query costs and the query runs; reads no private row."""
        if losses_in(query) is not None:
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
        self._rehearse(query, _bound(query, event))

    def _debit_and_draw(
        self,
        queries: Sequence[Query],
        event: GaussianEvent,
        name: str,
        draw: Callable[[float, AddNoise], Array],
        *,
        copies: int = 1,
        seen_early: bool = False,
    ) -> Array:
        """Check and debit; then let ``draw`` compute sums on the grid and add noise to them.

        ``seen_early`` means that someone sees answers before the release is complete (a server its users' messages, a
        group the sum of the previous one), so an interrupted release cannot be drawn again without paying again.
        """
        for query in {id(query): query for query in queries}.values():
            self._check(query, event)
        query, bound = queries[0], event.sensitivity.zero_out
        if any(other.coordinates != query.coordinates for other in queries):
            raise ValueError(f"all queries of one release must have {query.coordinates} coordinates, as the first has.")
        units = self.n_users if query.unit is Unit.USER else self.n_rows
        grid = self._grid(bound, event, units)
        if grid * math.sqrt(query.coordinates) > bound * GUARD / 3:
            raise ValueError(
                f"{query.coordinates} coordinates of {units} units do not fit the integer grid. "
                "Release fewer coordinates at a time."
            )
        coordinates = query.coordinates * copies
        mode = self._mode(event, coordinates)
        event = replace(event, slack=noise_source.slack_of(event.sigma, grid, coordinates))
        generator = self._generator()

        def add_noise(total: npt.NDArray[np.int64], messages: int) -> Array:
            if not self._adds_noise:
                return np.asarray(total * grid, dtype=np.float64)
            return noise_source.add_noise(total, self.sum_sigma(event, messages), grid, mode, generator)

        self._repeatable = not seen_early or not event.private
        self.ledger_run.asked(queries, self._directions)
        value = self.ledger_run.release(
            name,
            event,
            lambda: draw(grid, add_noise),
            noise=mode,
            grid=grid,
            coordinates=coordinates,
            again=self._repeatable,
        )
        if self._on_release is not None:
            self._on_release(name)
        return value

    def _grid(self, bound: float, event: GaussianEvent, units: int) -> float:
        """Return the spacing of the grid on which sums are added."""
        return noise_source.grid_of(bound, self.sum_sigma(event), units)

    @property
    def _adds_noise(self) -> bool:
        """Whether this process adds the noise; False if the sums that it collects are noisy already."""
        return True

    def _rehearse(self, query: Query, bound: float) -> None:
        """Run the query on synthetic rows, so that bugs and broken bounds surface before any private row is read.

        Each query is run; bounds of its fused form are compared once per kind of query and shape of rows, because a fit
        asks the same questions many times, with other public numbers, and whoever holds the rows enforces them anyway.
        """
        form = query.form_for(self.n_users, self.n_features)
        kind_of = (_kind(query), form is query, self.n_features, self.sparse, math.isfinite(bound))
        rows, targets = synthetic_rows(self.n_features)
        kinds: list[Any] = [rows]
        if self.sparse:
            import scipy.sparse

            kinds.append(scipy.sparse.csr_matrix(np.where(rows > 0, rows, 0.0)))
        for kind in kinds:
            rehearse(query, kind, targets)
            if not (form is query and query.one_form):  # with one form, the contribution is already the sum of one user
                rehearse(query, kind, targets, lambda X, y: form.block_sum(X, y, np.array([0, 8]), bound))
            if kind_of not in _CHECKED_FORMS:
                check_form(form, kind, targets, bound)
        _CHECKED_FORMS.add(kind_of)

    def _mode(self, event: GaussianEvent, coordinates: int) -> Mode:
        if not event.private:
            return "none"
        if self._noise_seed is not None:
            return "seeded"
        if self._noise == "auto":
            return noise_source.default_mode(coordinates)
        return "exact" if self._noise == "exact" else "float"


def _bound(query: Query, event: GaussianEvent) -> float:
    """Return the bound that is enforced: always the clip that is charged, unless nothing is charged or clipped."""
    return event.sensitivity.zero_out if event.private or query.clipped else math.inf


def _check_no_sampling(event: GaussianEvent) -> None:
    if event.sampling_rate != 1.0:
        raise ValueError(
            "every user answers here, so sampling_rate must be 1: otherwise the release would be charged less than it "
            f"costs. Found {event.sampling_rate!r}."
        )
