"""Paper 003's Algorithm 3, made runnable: choose a classifier's shared basis by its margins, in a random projection.

1. Rows are projected by a public matrix of random signs to k' dimensions (:func:`sign_matrix`). Inner products, and so
   margins, survive if k' is that of Lemma 15 (:func:`target_dimension`), whatever the number of features.
2. Candidates for the basis in k' dimensions are scored by everybody's margin losses
   (:class:`~tacitly.methods.margin.queries.MarginLosses`), and permute-and-flip chooses one: pure ε.
3. The choice is mapped back, U = MᵀŨ, and heads are fitted at home.

Where candidates come from. The paper takes a γ-cover of all k'×k matrices, (√k/γ)^(k'k) of them: ``cover`` does so
where they can be listed. ``random`` takes public random bases. ``search`` spends the budget on a row of choices: a
round's candidates lie around the last one's, closer and closer; still pure ε. ``gradient`` lets Private FedRep's noisy
steps propose (with hinge loss, in the projected space; its iterates are public) and chooses among them: (ε, δ).
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
"""Dimensions to project to at most. Lemma 15's constant asks for thousands at any margin seen in practice, and what a
search or a noisy step costs grows with them. Chosen by reasoning and a few synthetic draws."""

MOST_COVERED = 20_000
"""Points that a cover may have to be taken without being asked for."""

_MOST_LISTED = 200_000  # points of a cover that is asked for: totals and candidates of a choice are held in memory

_CHOICE_SHARE = 0.1  # of ε for the choice among a gradient loop's iterates
_CLOSEST, _CLOSER = 0.1, 0.85  # a search's spread: where it ends, and how it falls a round


def target_dimension(vectors: int, distortion: float, failure: float = 0.05) -> int:
    """Lemma 15's k' = 8 log(t/β)/τ²: signs keep inner products of t vectors to τ‖u‖‖u'‖, but with chance β.

    >>> target_dimension(200_000, 0.5)
    487
    """
    return math.ceil(8.0 * math.log(vectors / failure) / distortion**2)


def sign_matrix(dimension: int, n_features: int, random_state: int) -> Array:
    """Return a k'×d matrix of independent signs over √k'; the identity where there is nothing to reduce.

    >>> sign_matrix(4, 9, 0).shape, float(abs(sign_matrix(4, 9, 0)).max())
    ((4, 9), 0.5)
    """
    if dimension >= n_features:
        return np.eye(n_features)
    signs = np.random.default_rng(random_state).integers(0, 2, size=(dimension, n_features))
    return np.asarray((2.0 * signs - 1.0) / math.sqrt(dimension))


def covering_size(rows: int, columns: int, radius: float) -> float:
    """Return about how many points :func:`frobenius_cover` would list before it leaves out corners.

    >>> covering_size(48, 4, 0.1)
    inf
    """
    side = 2.0 * (math.sqrt(2.0 * columns) + radius) / _spacing(rows * columns, radius) + 1.0
    try:
        return float(side ** (rows * columns))
    except OverflowError:
        return math.inf


def frobenius_cover(rows: int, columns: int, radius: float) -> Array:
    """Return a γ-cover of the paper's ball: every matrix of Frobenius norm up to √(2·columns) has a point this near.

    A cubic grid: no point is further from it than half a cell's diagonal.

    >>> frobenius_cover(2, 1, 0.5).shape
    (21, 2, 1)
    """
    if covering_size(rows, columns, radius) > _MOST_LISTED:
        raise ValueError(
            f"a cover of {rows}x{columns} matrices at radius {radius} has about "
            f"{covering_size(rows, columns, radius):.1e} points, too many to list. Take another mode or radius."
        )
    size, step = math.sqrt(2.0 * columns) + radius, _spacing(rows * columns, radius)
    ticks = step * np.arange(-math.floor(size / step), math.floor(size / step) + 1)
    points = np.array(list(itertools.product(ticks, repeat=rows * columns)))
    inside: Array = points[np.linalg.norm(points, axis=1) <= size]
    return inside.reshape(-1, rows, columns)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How candidates are made and scored.

    Defaults were chosen by hand on synthetic users much like those of the benchmark, so its tables of such users may
    flatter them a little.
    """

    proposals: str
    dimension: int
    margin: float = 0.05
    candidates: int = 256  # a choice
    choices: int = 20  # of a search
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
        """Divide a budget: equal choices; or one choice for a tenth of ε, and the rest for a gradient loop."""
        if self.proposals != "gradient":
            number = self.choices if self.proposals == "search" else 1
            return Plan(budget, [], choices=[budget.epsilon / number] * number)
        if budget.delta == 0:
            raise ValueError(
                "mode 'gradient' releases noisy sums, which need delta > 0. For pure epsilon: mode='search'."
            )
        phases: tuple[Phase, ...] = fedrep.Settings(rounds=self.rounds).plan(budget).phases
        return Plan(budget, phases, choices=[_CHOICE_SHARE * budget.epsilon])

    def events(self, plan: Plan) -> list[Event]:
        """Every release the algorithm will make."""
        sums = fedrep.Settings(rounds=self.rounds).events(plan) if self.proposals == "gradient" else []
        return [*sums, *(plan.choice(number) for number in range(len(plan.choices)))]


def learn(federation: Federation, plan: Plan, settings: Settings, rank: int, random_state: int) -> Array:
    """Choose a basis of ``rank`` columns; return it orthonormal, in raw feature coordinates. Targets are 0 and 1."""
    signs = sign_matrix(settings.dimension, federation.n_features, random_state)
    reduced = federation.projected(signs)
    size = len(signs)
    rng = np.random.default_rng([random_state, 1])
    dictionary = head_dictionary(rank)

    def chosen(candidates: Array, number: int) -> Array:
        query = MarginLosses(candidates, dictionary, settings.margin, settings.half, settings.centered)
        best: Array = candidates[reduced.select(query, plan.choice(number), f"choice {number + 1}")]
        return best

    if settings.proposals == "gradient":
        best = chosen(_iterates(reduced, plan, settings, rank), 0)
    elif settings.proposals == "cover":
        best = chosen(frobenius_cover(size, rank, settings.radius), 0)
    else:
        best = chosen(_around(np.zeros((size, rank)), 1.0, settings.candidates, rng), 0)
        spread = 1.0
        for number in range(1, len(plan.choices)):
            spread = max(_CLOSER * spread, _CLOSEST)
            nearby = _around(best, spread, settings.candidates - 1, rng)
            best = chosen(np.concatenate([best[None], nearby]), number)
    return orthonormal(signs.T @ best)[0]


def _iterates(reduced: Federation, plan: Plan, settings: Settings, rank: int) -> Array:
    """Private FedRep's bases in the projected space, and means of its last few."""
    bases: list[Array] = []
    loop = fedrep.Settings(rounds=settings.rounds)
    fedrep.learn(reduced, plan, loop, rank, centered=settings.centered, loss=Loss("hinge"), on_round=bases.append)
    means = [_mean_basis(bases[-last:]) for last in range(2, len(bases) // 2 + 1)]
    return np.array([*bases, *means])


def _mean_basis(bases: list[Array]) -> Array:
    """Top eigenvectors of the mean of projectors: a mean that does not care how bases are turned."""
    rank = bases[0].shape[1]
    top: Array = np.linalg.eigh(sum((basis @ basis.T for basis in bases), np.zeros((len(bases[0]),) * 2)))[1][:, -rank:]
    return top


def _around(centre: Array, spread: float, number: int, rng: np.random.Generator) -> Array:
    noise = rng.standard_normal((number, *centre.shape)) * (spread / math.sqrt(len(centre)))
    return np.array([orthonormal(centre + each)[0] for each in noise])


def _spacing(coordinates: int, radius: float) -> float:
    return 2.0 * radius / math.sqrt(coordinates)
