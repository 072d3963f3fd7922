"""The round loop of Private FedRep, CENTAUR and AMHT-LRS: noisy steps of a shared basis, and the server's part of them.

A round releases one :class:`StepQuery` and moves public state (:class:`Descent`; for AMHT-LRS's central model
:class:`~tacitly.methods.low_rank_sparse.algorithm.Central`) by the noisy sum. The margin classifier's ``gradient`` mode
runs the same loop through Private FedRep.

The docstring of each query states adjacency, sensitivity and event. Everything else here is post-processing: it reads
released sums, their public noise level and the public number of users.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from tacitly.arrays import Array, Offsets, Rows, check_shape
from tacitly.federation.base import Federation, Query
from tacitly.linalg import inverse_root, orthonormal, unpack_symmetric
from tacitly.methods.shared.whitening import Whitening
from tacitly.privacy.calibration import Plan
from tacitly.privacy.guarantee import GaussianEvent

TARGET_RATIO = 3.0
"""The target of ρ: of a contribution's unit norm, the part for the basis is then 95 %, the part for the head 32 %."""

_SETTLED = 8  # steps after which a direction that users need has been found, if it is found at all
_CONVERGED = 20.0  # times the floor: the largest spread of heads when corrections are only noise
_UNUSED = 1.7  # times the floor, with few directions: the spread of heads along a direction without information
_ROWS = 10.0  # rows of a typical user: the true number is private


@dataclass(frozen=True)
class StepQuery(Query):
    """The public fields, the shape and the layout of one user's contribution to a step of the basis.

    A contribution is (g vᵀ/c, v vᵀ) scaled to norm one: g is the correction from the user's residuals, v the head.
    """

    basis: Array  # U, in whitened coordinates, orthonormal
    head_metric: Array  # k×k, symmetric: heads are measured as head_metric·v
    scale: float  # c
    whitening: Whitening

    def __post_init__(self) -> None:
        check_shape("basis", self.basis, self.whitening.scale.size, None)
        check_shape("head_metric", self.head_metric, self.basis.shape[1], self.basis.shape[1])

    @property
    def coordinates(self) -> int:
        """Entries of a d×k matrix and of a symmetric k×k matrix."""
        d, k = self.basis.shape
        return int(d * k + k * (k + 1) // 2)

    @abstractmethod
    def block_sums(self, X: Rows, y: Rows, offsets: Offsets, bound: float, size: int) -> Array:
        """Return the sums of consecutive blocks of ``size`` users, one row per block."""

    def block_sum(self, X: Rows, y: Rows, offsets: Offsets, bound: float) -> Array:
        """Return the sum of one block of users, by the fused pass of :meth:`block_sums`."""
        total: Array = self.block_sums(X, y, offsets, bound, max(1, len(offsets) - 1))[0]
        return total

    def split(self, released: Array) -> tuple[Array, Array]:
        """Split the released vector into its two matrices: the step (times 1/c) and the heads' second moment."""
        d, k = self.basis.shape
        return released[: d * k].reshape(d, k), unpack_symmetric(released[d * k :], k)


class FirstBasis(NamedTuple):
    """The basis from which the rounds start."""

    whitening: Whitening
    basis: Array  # in whitened coordinates, orthonormal
    strengths: Array  # expected spread of heads over its directions
    found: int  # number of directions that are always kept, whatever the rounds show


class LearnedBasis(NamedTuple):
    """A basis in whitened coordinates, and the whitening."""

    whitening: Whitening
    basis: Array

    @property
    def raw(self) -> Array:
        """The basis in raw feature coordinates, orthonormal."""
        return orthonormal(self.whitening.to_raw(self.basis))[0]


class ServerState(Protocol):
    """Public state that the rounds update."""

    def advance(self, step: Array, second: Array, sigma: float, n_users: float, *, damping: float) -> None:
        """Update by one release: its two matrices, and the noise standard deviation of their entries."""


def run_rounds(
    federation: Federation,
    event: GaussianEvent,
    state: ServerState,
    next_query: Callable[[], StepQuery],
    *,
    rounds: int,
    averaging: float,
    name: str,
    on_round: Callable[[], None] | None = None,
) -> None:
    """Release ``next_query()`` and advance ``state`` by it, ``rounds`` times.

    Over the last part of the rounds, ``averaging``, steps shorten, so that the result averages over them. ``on_round``
    is called after every round.
    """
    for number in range(rounds):
        query = next_query()
        released = federation.release(query, event, f"{name} {number + 1}")
        late = max(0.0, number - (1.0 - averaging) * rounds)
        # The noise of the sum, which exceeds the event's σ if every user adds noise to their own message.
        sigma, expected_users = federation.sum_sigma(event), event.sampling_rate * federation.n_users
        state.advance(*query.split(released), sigma, expected_users, damping=1.0 / (1.0 + late / 2.0))
        if on_round is not None:
            on_round()


def refine_basis(
    federation: Federation,
    plan: Plan,
    start: FirstBasis,
    make_query: Callable[[Array, Array, float, Whitening], StepQuery],
    rounds: int,
    averaging: float,
    on_round: Callable[[Array], None] | None = None,
    *,
    drops: bool = True,
) -> LearnedBasis:
    """Run the rounds from a first basis; return the last one.

    ``make_query`` makes a round's query from the fields of :class:`StepQuery`. ``on_round`` is called with the basis
    after every round. With ``drops``, directions that the start has not found are removed from a private basis if no
    head uses them: its rank is an upper limit.
    """
    whitening, basis, strengths, found = start
    state = Descent(basis, np.diag(strengths), least=found if drops and plan.budget.private else None)

    def next_query() -> StepQuery:
        return make_query(state.basis, state.head_metric, state.scale, whitening)

    def report() -> None:
        if on_round is not None:
            on_round(LearnedBasis(whitening, state.basis).raw)

    event = plan.event("rounds", clip=1.0)
    run_rounds(
        federation, event, state, next_query, rounds=rounds, averaging=averaging, name="basis step", on_round=report
    )
    return LearnedBasis(whitening, state.basis)


@dataclass
class StepLength:
    """The length of steps: shortened when a step reverses the one before it, lengthened when it continues it."""

    value: float = 1.0
    _previous: Array | None = None

    def update(self, change: Array, signal: float) -> None:
        """Compare a step with the previous one, unless it is mostly noise (``signal`` is its share of signal)."""
        previous, self._previous = self._previous, change
        if previous is None or signal < 0.4:
            return
        size = float(np.sum(previous**2))
        turn = float(np.sum(change * previous)) / size if size > 0 else 0.0
        if turn < -0.15:
            self.value *= max(0.4, 1.0 / (1.0 - 1.5 * turn))
        elif turn > 0.3:
            self.value = min(1.2 * self.value, 1.6)

    def rotate(self, rotation: Array) -> None:
        """Express the last step in the new basis's coordinates: basis + step = new basis @ ``rotation``."""
        if self._previous is not None:
            self._previous = self._previous @ np.linalg.inv(rotation)


@dataclass
class Descent:
    """The server's state for a shared basis: public, moved by public releases only."""

    basis: Array
    head_moment: Array
    scale: float = 1.0 / TARGET_RATIO
    step_length: StepLength = field(default_factory=StepLength)
    least: int | None = None  # number of directions that are kept even if no head uses them; None for all
    steps: int = 0
    head_metric: Array = field(init=False)

    def __post_init__(self) -> None:
        k = self.basis.shape[1]
        self.head_moment = self.head_moment * (k / np.trace(self.head_moment))
        self.head_metric = inverse_root(self.head_moment)

    def advance(self, step: Array, second: Array, sigma: float, n_users: float, *, damping: float) -> None:
        """Move the basis by one release: ``step`` is Σ s·gvᵀ/c and ``second`` is Σ s·vvᵀ, both with noise σ."""
        k = self.basis.shape[1]
        step = step - self.basis @ (self.basis.T @ step)
        step, signal = shrink_by_noise(step, sigma, k)

        values, vectors = np.linalg.eigh(second)
        values = np.maximum(values, max(sigma * math.sqrt(2.0 * k), np.finfo(float).tiny))
        change = self.scale * step @ ((vectors / values) @ vectors.T) @ self.head_metric
        self.step_length.update(change, signal)

        basis, rotation = orthonormal(self.basis + limit_rotation(damping * self.step_length.value * change))
        self.step_length.rotate(rotation)
        denoised = (vectors * values) @ vectors.T
        root = np.linalg.inv(self.head_metric)
        moment = rotation @ root @ denoised @ root @ rotation.T
        mean, unit = float(np.trace(second)) / n_users, k / float(np.trace(moment))
        # Along a direction without information a fitted head is noise, with the variance of an entry of g.
        floor = unit * (ratio_of(mean) * self.scale) ** 2 * float(np.trace(second)) / max(len(basis) - k, 1)
        moment *= unit
        metric = inverse_root(moment)
        # c is measured in units of the metric, so it changes with it.
        units = math.sqrt(np.trace(self.head_metric @ moment @ self.head_metric) / np.trace(metric @ moment @ metric))
        self.scale *= scale_change(mean) * units
        self.basis, self.head_moment, self.head_metric = basis, moment, metric
        self.steps += 1
        if self.least is not None and self.steps >= _SETTLED:
            self._keep(used_directions(moment, floor, self.least))

    def _keep(self, directions: Array) -> None:
        """Replace the basis by these orthonormal combinations of its columns, if there are fewer of them."""
        k, kept = directions.shape
        if kept < k:
            self.basis, moment = self.basis @ directions, directions.T @ self.head_moment @ directions
            self.head_moment = moment * (kept / np.trace(moment))
            self.head_metric = inverse_root(self.head_moment)
            self.step_length = StepLength(self.step_length.value)


def limit_rotation(change: Array) -> Array:
    """Shorten a change of an orthonormal basis so that no direction rotates by more than 45°.

    A user's correction is valid to first order only. If features are far from white it can be many times too long. A
    basis that moves that far never converges, although its steps do not seem to reverse.
    """
    left, sizes, right = np.linalg.svd(change, full_matrices=False)
    return np.asarray((left * np.minimum(sizes, 1.0)) @ right)


def shrink_by_noise(step: Array, sigma: float, removed: int) -> tuple[Array, float]:
    """Scale a noisy d×k matrix by its share of signal; return this share too.

    ``removed`` of the d directions were projected out, with the noise along them.
    """
    d, k = step.shape
    size = float(np.sum(step**2))
    share = max(0.0, 1.0 - sigma**2 * (d - removed) * k / size) if size > 0 else 0.0
    return share * step, share


def scale_change(mean: float) -> float:
    """Return the factor by which to change the scale c, so that ρ moves to :data:`TARGET_RATIO`.

    ``mean`` is the released mean of 1/√(1 + ρ²) over users.
    """
    return min(max(ratio_of(mean) / TARGET_RATIO, 0.2), 3.0)


def ratio_of(mean: float) -> float:
    """Return ρ from the released mean of 1/√(1 + ρ²) over users."""
    return math.sqrt(1.0 / min(max(mean, 0.02), 0.995) ** 2 - 1.0)


def used_directions(moment: Array, floor: float, least: int) -> Array:
    """Return the orthonormal combinations of directions along which heads vary more than noise alone would make them.

    At least the ``least`` largest are returned. ``moment`` is the released second moment of heads, ``floor`` the
    variance that noise gives a fitted head; with k directions and m rows, least squares multiplies it by
    (m − k)/(m − k − 1). If the largest spread is not far above the floor, all directions are returned: corrections then
    still contain what the basis misses, and do not measure noise.

    >>> used_directions(np.diag([2.9, 0.01, 0.09]), 0.01, 1).round(1) + 0.0
    array([[0., 1.],
           [0., 0.],
           [1., 0.]])
    """
    values, vectors = np.linalg.eigh(moment)
    free = max(_ROWS - len(values), 2.0)
    used = values >= _UNUSED * free / (free - 1.0) * floor
    used[len(used) - min(least, len(used)) :] = True
    return np.asarray(vectors[:, used] if values[-1] > _CONVERGED * floor else vectors)
