"""Learn a population prior N(w̄, S) and a noise variance s² from noisy sums: a private linear mixed model.

This is the server's half. Every release is a noisy mean over users of one of the queries in this folder; everything
else is post-processing of public numbers. The steps are:

1. Units: center and scale of every column (:mod:`~tacitly.methods.mixed_effects.units`), unless they are public.
2. The typical variance of targets within a user, as the initial value of s².
3. Two rounds of Newton's method for w̄ with a diagonal S. After each round, three variances are updated: of the
   intercept, of the slopes, and of the noise (:class:`~tacitly.methods.mixed_effects.variance_queries.LogVariances`).
4. The whole covariance, twice: the noisy mean of u uᵀ − J, in coordinates where J is approximately diagonal
   (:func:`~tacitly.methods.mixed_effects.covariance.turned`), with eigenvalues shrunk according to the known noise, so
   that S keeps the directions that exceed the noise (:func:`~tacitly.methods.mixed_effects.covariance.grown`). With few
   users no direction does, and S stays diagonal.
5. Three rounds of Newton's method with that S, and finer updates of the variances.
6. How well users' left-out rows are predicted. This calibrates intervals and shows whether the prior helps at all.

Clipping bounds follow the typical norm of contributions (:mod:`~tacitly.methods.shared.typical_norm`), whose release
costs a few hundredths of the budget. Rounds of Newton's method are combined as measurements of w̄ with known noise
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
    """Public settings of a run: sizes, public bounds of columns (the target last), text columns."""

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
        """Return the share of the budget that is spent on frequent levels of text columns; larger with few users.

        A level that is not found is lost like a missing column. So levels that a tenth of the rows have should exceed
        the noise: three times the noise, σ·√(text columns)/(n·√share), is below a tenth.
        """
        columns = len(set(self.texts) - {0})
        if not columns:
            return 0.0
        needed = columns * (3.0 * sigma / (_FREQUENT * self.n_users)) ** 2
        return min(max(needed, _TEXT), _MOST_TEXT)

    def events(self, plan: Plan) -> list[GaussianEvent]:
        """Every release that the algorithm will make; clips that depend on earlier releases are 1 here."""
        return [plan.event(phase.name, clip=1.0) for phase in plan.phases for _ in range(phase.releases)]


@dataclass(frozen=True)
class Learned:
    """The learned prior; everything in it is public."""

    units: Coordinates
    prior: Prior
    mean_covariance: Array  # of the estimate of the prior's mean, privacy noise included
    inflation: float  # by which standard deviations of predictions are multiplied
    weak: bool  # whether users are better off with their own means: too few users for the noise
    other_law: float = 0.0  # share of users, of classes and counts, who follow the other distribution


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
        """Release the information under the current prior, then scores; each score updates the mean."""
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
        """Release the spread, and add the directions that exceed the noise to the covariance."""
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
        """The prior that users apply: it includes the error of the population's weights."""
        return self.prior.doubted(self.newton.covariance())

    def checked(self, prior: Prior | None = None) -> tuple[float, bool]:
        """Release how well left-out rows are predicted; return a factor for deviations, and whether the prior helps.

        ``prior`` is the prior that users apply, if it is not :attr:`doubted`.
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
        """Return a factor for all variances, so that they explain what slopes cannot explain; nearly always 1.

        If most users always have the same target (a rare diagnosis, coded as 0 and 1), variances estimated from typical
        users fall to zero, and every user is predicted to be typical. But the target has a variance of about one in its
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
    """Return the number of deviations up to which features stay linear, from public numbers.

    Columns have long tails: a delay of ten hours lies 30 typical delays away, and it is a real value. But the error of
    a slope is multiplied by that distance, so with few users, tails are compressed.

    >>> one = Budget(epsilon=1.0, delta=1e-6)
    >>> straight(8, 200, one), straight(8, 10_000, one)
    (5.0, 20.0)
    """
    return min(max(KNEE * n_users / users_needed(size, budget), KNEE), _STRAIGHTEST)


def users_needed(size: int, budget: Budget) -> int:
    """Return the number of users for which the noise of a score is a fifth of its sampling error, for ``size`` weights.

    This is a rule of thumb from the shares of the budget, for warnings and plans. It uses public numbers only.
    """
    if not budget.private:
        return 1
    sigma = Plan(budget, [Phase(name="all", share=1.0)]).event("all", clip=1.0).sigma
    return math.ceil(1.3 * size * sigma / (0.2 * 0.6))
