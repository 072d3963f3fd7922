"""Learn a population prior N(w̄, S) and a noise variance s² through the door: a private linear mixed model.

The server's half. Every release is a noisy mean over users of one of the queries of this folder; all the rest is
post-processing of public numbers. In order:

1. Units: center and scale of every column (:mod:`~tacitly.methods.mixed_effects.units`), unless they are public.
2. The typical variance of targets within a user, to start the noise level.
3. Two rounds of Newton's method for w̄ under a diagonal S, each followed by a correction of three variances: of the
   intercept, of the slopes, of the noise (:class:`~tacitly.methods.mixed_effects.variance_queries.LogVariances`).
4. The whole covariance, twice: the noisy mean of u uᵀ − J, in coordinates where J is about diagonal
   (:func:`~tacitly.methods.mixed_effects.covariance.turned`), its eigenvalues shrunk by the known noise, so that S
   gets as many directions as stand out of the noise (:func:`~tacitly.methods.mixed_effects.covariance.grown`). With
   few users none does, and S stays as it was.
5. Three rounds of Newton's method under that S, with fine corrections of the variances.
6. How well users' left-out rows are predicted: it calibrates intervals, and says whether the prior helps at all.

Clips follow the typical norm of contributions (:mod:`~tacitly.methods.shared.typical_norm`), released for a few
hundredths of the budget. Rounds of Newton's method are combined as measurements of w̄ with known noise
(:class:`~tacitly.methods.mixed_effects.newton.Newton`), which also gives its standard errors, privacy included.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from tacitly.arrays import Array
from tacitly.federation.base import Federation, Query
from tacitly.linalg import unpack_symmetric
from tacitly.methods.mixed_effects import units
from tacitly.methods.mixed_effects.advantage import BOUND, Advantage
from tacitly.methods.mixed_effects.covariance import changed, grown, turned
from tacitly.methods.mixed_effects.newton import Newton, evened, preconditioned
from tacitly.methods.mixed_effects.posterior import KNEE, Coordinates, Prior
from tacitly.methods.mixed_effects.queries import Information, InformationShares, MeasuredScore, Score
from tacitly.methods.mixed_effects.statistics import few_digits
from tacitly.methods.mixed_effects.variance_queries import (
    LogVariances,
    MeasuredSpread,
    Spread,
    Variances,
    WithinVariance,
)
from tacitly.methods.shared.noisy_mean import noisy_mean
from tacitly.methods.shared.typical_norm import typical_norm
from tacitly.privacy.calibration import Phase, Plan
from tacitly.privacy.guarantee import Budget, GaussianEvent

ROUNDS = (2, 3)
"""Newton rounds before and after the covariance is learned."""

GROWTHS = 2
"""Releases of the spread: under the diagonal covariance, and under what the first made of it."""

# Parts of the budget that is left after the units; they are scaled to 1.
_SHARES, _INFORMATION, _SCORE = 0.03, (0.06, 0.08), (0.10, 0.26)
_TEXT, _MOST_TEXT = 0.05, 0.20  # of what the units leave, if there are text columns without declared levels
_FREQUENT = 0.1  # share of a level that should stand out of the noise
_SPREAD, _VARIANCES, _NORMS = 0.34, 0.08, 0.05
_COVERAGE, _COVERED = (0.03, 0.12), 0.01  # more where users are few: noise of the share that intervals should cover
_LOG_CLIP, _RATIO_CLIP = math.sqrt(3.0), 2.2
_USUAL = (0.8, 0.65)  # slope and squared length of clipped scores
_LEAST_SCORE = 0.5  # scores have a mean square of about one under the right prior
_STRAIGHTEST = 20.0  # deviations up to which features are taken as they are, if users are many
_LEAST_VARIANCE = 0.5  # of what the population's slopes leave unexplained, see Learner._rescale

Bounds = tuple[tuple[float, float] | None, ...]


@dataclass(frozen=True)
class Settings:
    """What is decided before anything is released: sizes, public bounds of columns (the target last), text columns."""

    n_users: int
    bounds: Bounds
    texts: tuple[int, ...] = ()  # for each feature, the number of its text column from 1, or 0

    @property
    def size(self) -> int:
        """Number of weights, p."""
        return len(self.bounds)

    @property
    def unknown(self) -> int:
        """Number of columns whose units have to be found."""
        return sum(bound is None for bound in self.bounds)

    def plan(self, budget: Budget) -> Plan:
        """Divide a budget: units first, then text, then the prior."""
        whole = Plan(budget, [Phase(name="all", share=1.0)]).event("all", clip=1.0).sigma
        phases = units.phases(self.n_users, self.unknown, whole, int(units.in_range(self.bounds).sum()))
        share = sum(phase.share for phase in phases)
        text_share = self._text_share(whole) * (1.0 - share)
        if text_share:
            phases.append(Phase(name="shares of text", share=text_share))
            share += text_share
        coverage = min(max((whole * BOUND / (_COVERED * self.n_users)) ** 2, _COVERAGE[0]), _COVERAGE[1])
        total = _SHARES + sum(_INFORMATION) + sum(_SCORE) + _SPREAD + _VARIANCES + _NORMS + coverage
        rest = (1.0 - share) / total * (1.0 - 1e-12)
        norms, variances = _NORMS * rest, _VARIANCES * rest
        phases += [
            Phase(name="within", share=0.2 * norms),
            Phase(name="information shares", share=_SHARES * rest),
            Phase(name="information norm", share=0.2 * norms, releases=2),
            Phase(name="score norm", share=0.4 * norms, releases=sum(ROUNDS)),
            Phase(name="spread norm", share=0.2 * norms, releases=GROWTHS),
            Phase(name="spread", share=_SPREAD * rest, releases=GROWTHS),
            Phase(name="log variances", share=variances / 2.0, releases=ROUNDS[0]),
            Phase(name="variances", share=variances / 2.0, releases=1 + ROUNDS[1]),
            Phase(name="coverage", share=coverage * rest),
        ]
        for stage in (0, 1):
            phases.append(Phase(name=f"information {stage + 1}", share=_INFORMATION[stage] * rest))
            phases.append(Phase(name=f"score {stage + 1}", share=_SCORE[stage] * rest, releases=ROUNDS[stage]))
        return Plan(budget, phases)

    def _text_share(self, sigma: float) -> float:
        """Return the part of the budget that finds frequent levels of text columns, more where users are few.

        A level that is not found is as good as a column that is not there, so what matters most is that those stand out
        which a tenth of the rows have: three times the noise, σ·√(text columns)/(n·√share), is below that.
        """
        columns = len(set(self.texts) - {0})
        if not columns:
            return 0.0
        needed = columns * (3.0 * sigma / (_FREQUENT * self.n_users)) ** 2
        return min(max(needed, _TEXT), _MOST_TEXT)

    def events(self, plan: Plan) -> list[GaussianEvent]:
        """Every release the algorithm will make; clips that follow from releases are of norm one here."""
        return [plan.event(phase.name, clip=1.0) for phase in plan.phases for _ in range(phase.releases)]


@dataclass(frozen=True)
class Learned:
    """What was learned; everything in it is public."""

    units: Coordinates
    prior: Prior
    mean_covariance: Array  # of the estimate of the prior's mean, privacy noise included
    inflation: float  # by which standard deviations of predictions are multiplied
    weak: bool  # whether users are better off with their own means: too few users for the noise
    other_law: float = 0.0  # share of users, of classes and counts, who follow the other law


def learn(federation: Federation, plan: Plan, settings: Settings) -> Learned:
    """Learn the prior; see the module's docstring."""
    coordinates = units.learn_units(federation, plan, settings.bounds, settings.texts)
    coordinates = replace(coordinates, knee=straight(coordinates.size, settings.n_users, plan.budget))
    state = learn_prior(federation, plan, coordinates)
    inflation, helps = state.checked()
    return Learned(coordinates, state.prior, state.newton.covariance(), inflation, not helps)


def learn_prior(federation: Federation, plan: Plan, coordinates: Coordinates) -> Learner:
    """Learn the prior of weights in public coordinates, steps 2 to 5; return the last state."""
    state = Learner(federation, plan, coordinates)
    state.newton_rounds(0)
    for number in range(GROWTHS):
        state.grow(number)
    state.newton_rounds(1)
    return state


@dataclass
class Learner:
    """The public state of the algorithm."""

    federation: Federation
    plan: Plan
    units: Coordinates
    prior: Prior = field(init=False)
    groups: Array = field(init=False)
    newton: Newton = field(init=False)
    _metric: Array = field(init=False)
    _constant: Array = field(init=False)
    _axes: Array = field(init=False)  # the prior's root is their columns times the scales
    _scales: Array = field(init=False)

    def __post_init__(self) -> None:
        size = self.units.size
        event = self.plan.event("within", clip=1.0)
        within = typical_norm(self.federation, WithinVariance(self.units), event, "within", reach=20.0)
        noise = min(max(0.7 * within.size, 1e-10), 2.0) if within.found else 0.5
        variances = np.append(0.5, np.full(size - 1, 0.1 / size))
        self._axes, self._scales = np.diag(few_digits(np.sqrt(variances))), np.ones(size)
        self.prior = Prior(np.zeros(size), self._axes, noise)
        self.groups = np.append(0.0, np.ones(size - 1))
        self.newton = Newton(size, self.federation.n_users)
        self._metric, self._constant = self._first_metric()

    def _first_metric(self) -> tuple[Array, Array]:
        query = InformationShares(self.units, self.prior)
        roots, noise = self._mean(query, "information shares", "information shares", 1.0)
        return evened(roots, noise, np.diag(self.prior.root))

    def newton_rounds(self, stage: int) -> None:
        """Release the information under the current prior, then scores of which each moves the mean."""
        n, size = self.federation.n_users, self.units.size
        frozen = self.prior
        information = Information(self.units, frozen, self._metric)
        clip = self._clip(information, "information norm", f"information norm {stage + 1}", reach=12.0)
        matrix, noise = self._mean(information, f"information {stage + 1}", f"information {stage + 1}", clip)
        metric, slope, slope_noise = preconditioned(unpack_symmetric(matrix, size), noise, self._metric)
        for number in range(ROUNDS[stage]):
            label = f"{stage + 1}.{number + 1}"
            score = Score(self.units, replace(frozen, mean=self.prior.mean), metric, self._metric, clip)
            clipped = max(self._clip(score, "score norm", f"score norm {label}", reach=8.0), _LEAST_SCORE)
            measured = MeasuredScore(score, clipped, self._constant)
            mean, noise = self._mean(measured, f"score {stage + 1}", f"score {label}", measured.bound)
            vector, gains, squares = measured.split(mean, noise, _USUAL)
            moved = self.newton.add(slope * gains[:, None], vector, self.prior.mean, noise, slope_noise, squares / n)
            self.prior = replace(self.prior, mean=moved)
            if stage == 0:
                self._log_variances(label)
            elif number > 0:
                self._variances(label)
        self._metric = metric

    def grow(self, number: int) -> None:
        """Release the spread and give the covariance the directions that stand out of the noise."""
        plain = self.prior.root
        axes, sizes = turned(plain, self._metric)
        asked = replace(self.prior, root=few_digits(axes))
        query = Spread(self.units, asked)
        clip = 1.5 * self._clip(query, "spread norm", f"spread norm {number + 1}", reach=8.0)
        measured = MeasuredSpread(self.units, asked, clip)
        mean, noise = self._mean(measured, "spread", f"spread {number + 1}", measured.bound)
        change = changed(mean, noise, sizes, self.federation.n_users)
        if np.any(change):
            # Relative to the axes as they were: what did not change keeps its direction, the intercept above all.
            turn = np.linalg.solve(plain, axes)
            root, self.groups = grown(plain, turn @ change @ turn.T)
            self._axes, self._scales = few_digits(root), np.ones(self.units.size)
            self.prior = replace(self.prior, root=self._axes)
        self._variances(f"after growth {number + 1}")

    @property
    def doubted(self) -> Prior:
        """The prior for users, who know the population's weights with an error and so trust their own rows more."""
        return self.prior.doubted(self.newton.covariance())

    def checked(self, prior: Prior | None = None) -> tuple[float, bool]:
        """Release how left-out rows are predicted; return by what to multiply deviations, and if the prior helps.

        ``prior``: the one that users are given, if it is not :attr:`doubted`.
        """
        query = Advantage(self.units, self.doubted if prior is None else prior)
        released, noise = self._mean(query, "coverage", "coverage", query.bound)
        return query.inflation(released, noise), query.helps(released, noise)

    def _log_variances(self, label: str) -> None:
        query = LogVariances(self.units, self.prior, self.groups)
        mean, noise = self._mean(query, "log variances", f"log variances {label}", _LOG_CLIP)
        self._rescale(query.factors(mean, noise))

    def _variances(self, label: str) -> None:
        query = Variances(self.units, self.prior, self.groups)
        mean, noise = self._mean(query, "variances", f"variances {label}", _RATIO_CLIP)
        self._rescale(query.factors(mean, noise))

    def _rescale(self, factors: Array) -> None:
        scales = np.sqrt(factors[self.groups.astype(np.int64)])
        noise = max(self.prior.noise * float(factors[-1]), 1e-14)
        raised = self._raised(self.prior.root * scales, noise)
        scales, noise = scales * math.sqrt(raised), noise * raised
        # The same directions to the last bit: what users' machines keep along them serves all later releases.
        self._scales = self._scales * scales
        self.prior = replace(self.prior, root=self._axes * few_digits(self._scales), noise=noise)

    def _raised(self, root: Array, noise: float) -> float:
        """Return by what to multiply all variances, so that they explain what slopes cannot; nearly always 1.

        Sizes of typical users say nothing where most users are all alike (a diagnosis that few have, as 0 and 1): they
        fall to nothing, and everybody is predicted to be typical. But the target has a variance of about one in its
        units, and slopes explain at most the square of the sum of their sizes.
        """
        slopes = float(np.sum(np.abs(self.prior.mean[self.units.size - len(self.units.used) :])))
        least = _LEAST_VARIANCE * (1.0 - min(slopes, 1.0) ** 2)
        return max(1.0, least / (float(np.sum(np.square(root))) + noise))

    def _clip(self, query: Query, phase: str, name: str, *, reach: float) -> float:
        return typical_norm(self.federation, query, self.plan.event(phase, clip=1.0), name, reach=reach).size

    def _mean(self, query: Query, phase: str, name: str, clip: float) -> tuple[Array, float]:
        return noisy_mean(self.federation, query, self.plan.event(phase, clip=clip), name)


def straight(size: int, n_users: int, budget: Budget) -> float:
    """Return up to how many deviations features are taken as they are, from public numbers.

    Columns have long tails: a delay of ten hours lies 30 usual delays away, and makes a late arrival no less likely
    than ten minutes do. But an error of a slope is multiplied by as much, so where users are few, tails are drawn in.

    >>> one = Budget(epsilon=1.0, delta=1e-6)
    >>> straight(8, 200, one), straight(8, 10_000, one)
    (5.0, 20.0)
    """
    return min(max(KNEE * n_users / users_needed(size, budget), KNEE), _STRAIGHTEST)


def users_needed(size: int, budget: Budget) -> int:
    """Return about how many users make the noise of a score a fifth of its sampling error, for ``size`` weights.

    A rule of thumb from the shares of the budget, for warnings and plans; it looks at public numbers only.
    """
    if not budget.private:
        return 1
    sigma = Plan(budget, [Phase(name="all", share=1.0)]).event("all", clip=1.0).sigma
    return math.ceil(1.3 * size * sigma / (0.2 * 0.6))
