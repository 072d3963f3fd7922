"""Margin classifier: select a shared basis by its margins, in a random projection.

Algorithm 3 of Private FedRep (Snedeker et al. 2025), made runnable.

1. Rows are projected by a public matrix of random signs to k' dimensions (:func:`sign_matrix`). Inner products, and so
   margins, are preserved if k' is that of Lemma 15 (:func:`target_dimension`), for any number of features.
2. Candidates for the basis in k' dimensions are scored by all users' margin losses
   (:class:`~tacitly.methods.margin.queries.MarginLosses`: sensitivity 1), and permute-and-flip selects one: pure ε.
3. The selected basis is mapped back, U = MᵀŨ, and heads are fitted locally.

Sources of candidates. ``cover``: the paper's γ-cover of all k'×k matrices, (√k/γ)^(k'k) of them, if it is small enough
to list. ``random``: public random bases. ``search``: a sequence of selections whose candidates lie closer and closer to
the previous selection; still pure ε. ``gradient``: the iterates of Private FedRep's noisy steps (hinge loss, in the
projected space; they are public), with one selection among them: (ε, δ).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np

from tacitly.arrays import Array
from tacitly.federation.base import Federation
from tacitly.heads.losses import Loss
from tacitly.linalg import orthonormal
from tacitly.methods.fedrep import algorithm as fedrep
from tacitly.methods.margin.queries import MarginLosses, head_dictionary
from tacitly.privacy.calibration import Phase, Plan
from tacitly.privacy.guarantee import Budget, Event

PROPOSALS = ("cover", "random", "search", "gradient")
MOST_DIMENSIONS = 48
"""Most dimensions to project to. Lemma 15's constant requires thousands at any margin seen in practice, and the cost of
a search or a noisy step grows with the dimension. Chosen by reasoning and a few synthetic draws."""

MOST_COVERED = 20_000
"""Most points of a cover that mode ``auto`` chooses."""

_MOST_LISTED = 200_000  # points of an explicitly requested cover: its candidates and totals are held in memory

_CHOICE_SHARE = 0.1  # of ε, for the selection among a gradient loop's iterates
_LAST_SPREAD, _SPREAD_DECAY = 0.1, 0.85  # a search's spread: its last value, and its factor per selection


def target_dimension(vectors: int, distortion: float, failure: float = 0.05) -> int:
    """Return Lemma 15's k' = 8 log(t/β)/τ²: signs keep inner products of t vectors to τ‖u‖‖u'‖ with probability 1 − β.

    >>> target_dimension(200_000, 0.5)
    487
    """
    return math.ceil(8.0 * math.log(vectors / failure) / distortion**2)


def sign_matrix(dimension: int, n_features: int, random_state: int) -> Array:
    """Return a k'×d matrix of independent signs over √k'; the identity if k' is not below d.

    >>> sign_matrix(4, 9, 0).shape, float(abs(sign_matrix(4, 9, 0)).max())
    ((4, 9), 0.5)
    """
    if dimension >= n_features:
        return np.eye(n_features)
    signs = np.random.default_rng(random_state).integers(0, 2, size=(dimension, n_features))
    return np.asarray((2.0 * signs - 1.0) / math.sqrt(dimension))


def covering_size(rows: int, columns: int, radius: float) -> float:
    """Return the approximate number of points :func:`frobenius_cover` lists before it drops the corners.

    >>> covering_size(48, 4, 0.1)
    inf
    """
    side = 2.0 * (math.sqrt(2.0 * columns) + radius) / _spacing(rows * columns, radius) + 1.0
    try:
        return float(side ** (rows * columns))
    except OverflowError:
        return math.inf


def frobenius_cover(rows: int, columns: int, radius: float) -> Array:
    """Return a γ-cover (γ = ``radius``) of the paper's ball, all matrices of Frobenius norm up to √(2·columns).

    A cubic grid: no matrix is further from it than half a cell's diagonal.

    >>> frobenius_cover(2, 1, 0.5).shape
    (21, 2, 1)
    """
    if covering_size(rows, columns, radius) > _MOST_LISTED:
        raise ValueError(
            f"a cover of {rows}x{columns} matrices at radius {radius} has about "
            f"{covering_size(rows, columns, radius):.1e} points, too many to list. Use another mode or a larger radius."
        )
    size, step = math.sqrt(2.0 * columns) + radius, _spacing(rows * columns, radius)
    ticks = step * np.arange(-math.floor(size / step), math.floor(size / step) + 1)
    points = np.array(list(itertools.product(ticks, repeat=rows * columns)))
    inside: Array = points[np.linalg.norm(points, axis=1) <= size]
    return inside.reshape(-1, rows, columns)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How candidates are generated and scored.

    Defaults were chosen by hand on synthetic users much like the benchmark's, so its results on such users may be
    slightly optimistic.
    """

    proposals: str
    dimension: int
    margin: float = 0.05
    candidates: int = 256  # per selection
    choices: int = 20  # selections of a search
    rounds: int = 16  # of a gradient loop
    radius: float = 0.5  # γ of a cover
    half: bool = False
    centered: bool = False

    def __post_init__(self) -> None:
        if self.proposals not in PROPOSALS:
            raise ValueError(f"proposals must be one of {PROPOSALS}. Found {self.proposals!r}.")
        for name in ("dimension", "candidates", "choices"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1. Found {getattr(self, name)!r}.")
        if not 0 <= self.margin < 1:
            raise ValueError(f"margin must lie in [0, 1): rows are scaled to length one. Found {self.margin!r}.")
        if not self.radius > 0:
            raise ValueError(f"radius must be positive. Found {self.radius!r}.")

    def plan(self, budget: Budget) -> Plan:
        """Divide a budget: equal selections; or, for ``gradient``, a tenth of ε for one and the rest for the loop."""
        if self.proposals != "gradient":
            number = self.choices if self.proposals == "search" else 1
            return Plan(budget, [], choices=[budget.epsilon / number] * number)
        if budget.delta == 0:
            raise ValueError(
                "mode 'gradient' releases noisy sums, which need delta > 0. Found delta = 0. "
                "For pure epsilon use mode='search'."
            )
        phases: tuple[Phase, ...] = fedrep.Settings(rounds=self.rounds).plan(budget).phases
        return Plan(budget, phases, choices=[_CHOICE_SHARE * budget.epsilon])

    def events(self, plan: Plan) -> list[Event]:
        """List every release the algorithm will make, in order."""
        sums = fedrep.Settings(rounds=self.rounds).events(plan) if self.proposals == "gradient" else []
        return [*sums, *(plan.choice(number) for number in range(len(plan.choices)))]


def learn(federation: Federation, plan: Plan, settings: Settings, rank: int, random_state: int) -> Array:
    """Select a basis of ``rank`` columns; return it orthonormal, in raw feature coordinates. Targets are 0 and 1."""
    signs = sign_matrix(settings.dimension, federation.n_features, random_state)
    reduced = federation.projected(signs)
    size = len(signs)
    rng = np.random.default_rng([random_state, 1])
    dictionary = head_dictionary(rank)

    def select(candidates: Array, number: int) -> Array:
        query = MarginLosses(candidates, dictionary, settings.margin, settings.half, settings.centered)
        best: Array = candidates[reduced.select(query, plan.choice(number), f"choice {number + 1}")]
        return best

    if settings.proposals == "gradient":
        best = select(_iterates(reduced, plan, settings, rank), 0)
    elif settings.proposals == "cover":
        best = select(frobenius_cover(size, rank, settings.radius), 0)
    else:
        best = select(_around(np.zeros((size, rank)), 1.0, settings.candidates, rng), 0)
        spread = 1.0
        for number in range(1, len(plan.choices)):
            spread = max(_SPREAD_DECAY * spread, _LAST_SPREAD)
            nearby = _around(best, spread, settings.candidates - 1, rng)
            best = select(np.concatenate([best[None], nearby]), number)
    return orthonormal(signs.T @ best)[0]


def _iterates(reduced: Federation, plan: Plan, settings: Settings, rank: int) -> Array:
    """Return Private FedRep's bases in the projected space, and means of its last few."""
    bases: list[Array] = []
    loop = fedrep.Settings(rounds=settings.rounds)
    fedrep.learn(reduced, plan, loop, rank, centered=settings.centered, loss=Loss("hinge"), on_round=bases.append)
    means = [_mean_basis(bases[-last:]) for last in range(2, len(bases) // 2 + 1)]
    return np.array([*bases, *means])


def _mean_basis(bases: list[Array]) -> Array:
    """Return top eigenvectors of the mean of projectors: a mean that does not depend on rotations within the bases."""
    rank = bases[0].shape[1]
    top: Array = np.linalg.eigh(sum((basis @ basis.T for basis in bases), np.zeros((len(bases[0]),) * 2)))[1][:, -rank:]
    return top


def _around(centre: Array, spread: float, number: int, rng: np.random.Generator) -> Array:
    noise = rng.standard_normal((number, *centre.shape)) * (spread / math.sqrt(len(centre)))
    return np.array([orthonormal(centre + each)[0] for each in noise])


def _spacing(coordinates: int, radius: float) -> float:
    return 2.0 * radius / math.sqrt(coordinates)
