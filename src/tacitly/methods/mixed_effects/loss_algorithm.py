"""Learn a population prior N(w̄, S) for classes or counts: a private generalised linear mixed model.

This is the server's half; :mod:`~tacitly.methods.mixed_effects.algorithm` is the same for numbers, and both share the
pieces that work on (u, J). The steps are:

1. The units of the features are learned, unless they are public. Targets need no units.
2. The typical log odds or log rate of a user is released, as the first intercept.
3. Two Newton rounds estimate w̄ under a diagonal S. The variances of the intercept, the slopes and, for counts, the
   noise of log rates are corrected in between.
4. The whole covariance is estimated at once, from the noisy mean of u uᵀ − J.
5. Three Newton rounds estimate w̄ under that S, with further corrections of the variances.
6. For two classes and for counts, the share of users who follow the second distribution is estimated
   (:mod:`~tacitly.methods.mixed_effects.other_law`).

For counts, users' posteriors say how to correct the variances (:class:`LossSizes`). For classes posteriors carry little
information about them: if most people always give the same answer, a variance may have to grow from 2 to 50, and each
correction would see only a small part of that. So users of classes compare several variances at once by the evidence of
their rows (:class:`Evidences`).

A corrected variance changes what the mean implies for rows, so the mean is corrected with it. The mean count is about
exp(w̄ + variance/2). The log odds of a person are further from even odds than those of the population, by a factor of
about √(1 + 0.346·variance). Both corrections keep the mean counts and the shares of classes as they are, and standard
errors of w̄ include what is not known about the variances.

More than two classes are fitted as K models of one class against the rest, with K population means and one common S.
Softmax would couple the classes: a posterior would have a Kp×Kp covariance, whereas K posteriors of size p cost K times
one, their means and covariances are accurate, and averages over classes (information, spread, sizes) need no more
privacy budget than two classes do. Probabilities are normalised at the end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from tacitly.arrays import Array
from tacitly.federation.base import Federation, Query
from tacitly.linalg import unpack_symmetric
from tacitly.methods.mixed_effects import units
from tacitly.methods.mixed_effects.algorithm import Learned, Settings
from tacitly.methods.mixed_effects.corrected_variance import corrected_log
from tacitly.methods.mixed_effects.covariance import changed, grown, turned
from tacitly.methods.mixed_effects.loss_heads import OWN
from tacitly.methods.mixed_effects.loss_queries import (
    Evidences,
    Level,
    LossInformation,
    LossInformationShares,
    LossScore,
    LossSizes,
    LossSpread,
    MeasuredLossScore,
    OtherLaw,
)
from tacitly.methods.mixed_effects.newton import Newton, evened, preconditioned
from tacitly.methods.mixed_effects.posterior import Coordinates, Prior
from tacitly.methods.mixed_effects.variance_queries import GROUPS
from tacitly.methods.shared.noisy_mean import noisy_mean
from tacitly.methods.shared.typical_norm import typical_norm
from tacitly.privacy.calibration import Phase, Plan
from tacitly.privacy.guarantee import Budget

ROUNDS = (2, 3)
"""Newton rounds before and after the covariance is learned."""

UNITLESS = (-2.0, 2.0)
"""Bounds of a target that leave it as it is."""

# Shares of the budget that is left after the units; they are scaled to add up to 1.
_LEVEL, _SHARES, _INFORMATION, _SCORE = 0.02, 0.03, (0.05, 0.07), (0.09, 0.22)
_SPREAD, _SIZES, _NORMS, _OTHER = 0.26, 0.20, 0.05, 0.05
_SCORE_CLIP, _INFORMATION_CLIP, _SPREAD_CLIP = 1.8, 1.3, 1.8  # in units of the typical norm
# If one class is rare, most users have only rows of the other class and small contributions. A clipping bound of that
# size would remove the few users who have the rare class: the population's log odds would fall from round to round, and
# variances would grow to compensate. In whitened coordinates these few users have a spread of at least one, and scores
# have a mean square of about one: the smaller the typical score, the larger are the scores of the few. If the noise is
# small, bounds are wider still, because clipping causes bias.
_LEAST_SPREAD, _MOST_SPREAD, _EDGE = 1.0, 4.0, 0.1  # the last: noise of the spread's eigenvalues that is small
_RARE_SCORE, _RAREST, _MOST_SCORE = 0.5, 4.0, 8.0
_MOST_SIZES, _SMALL_SIZES = 10.0, 0.1
_COUNTS, _AFFORDED = 2.0, 4.0  # for rare counts: the count that is not clipped, and noise ÷ sampling error allowed
_INTERCEPT = {"logistic": 2.0, "poisson": 1.0}  # first variance of the intercept
_SLOPES = {"logistic": 1.0, "poisson": 0.3}  # first sum of the variances of slopes
_NOISE = 0.3
_USUAL = (0.95, 0.35)  # usual slope and squared length of clipped scores
_PLACES = {"logistic": ("1.2", "growth", "2.3"), "poisson": ("1.1", "1.2", "growth", "2.1", "2.2", "2.3")}
"""After which rounds variances are corrected."""
_TRIED = np.array([0.5, 2.0])  # factors of standard deviations that users compare
_DRAWN = 0.346  # (16√3/15π)²: shares of classes are those of log odds divided by √(1 + 0.346·variance)
_UNKNOWN = (2.5, 1.0)  # how uncertain the first variances are: variances of their logarithms, intercept and slopes
_REGROWN, _DRIFT = 0.5, 0.05  # the same at least after the covariance was learned, and what each correction adds


@dataclass(frozen=True)
class LossSettings(Settings):
    """Public settings, fixed before the first release; ``classes`` is 1 for two classes and for counts."""

    loss: str = "logistic"
    classes: int = 1

    def rest(self, share: float) -> list[Phase]:
        """Divide what the units leave."""
        other = _OTHER if self.classes == 1 else 0.0
        total = _LEVEL + _SHARES + sum(_INFORMATION) + sum(_SCORE) + _SPREAD + _SIZES + _NORMS + other
        part = share / total * (1.0 - 1e-12)
        phases = [
            Phase(name="level", share=_LEVEL * part),
            Phase(name="information shares", share=_SHARES * part),
            Phase(name="information norm", share=0.2 * _NORMS * part, releases=2),
            Phase(name="score norm", share=0.6 * _NORMS * part, releases=sum(ROUNDS)),
            Phase(name="spread norm", share=0.2 * _NORMS * part),
            Phase(name="spread", share=_SPREAD * part),
            Phase(name="sizes", share=_SIZES * part, releases=len(_PLACES[self.loss])),
        ]
        for stage in (0, 1):
            phases.append(Phase(name=f"information {stage + 1}", share=_INFORMATION[stage] * part))
            phases.append(Phase(name=f"score {stage + 1}", share=_SCORE[stage] * part, releases=ROUNDS[stage]))
        if other:
            phases.append(Phase(name="other law", share=other * part))
        return phases

    def plan(self, budget: Budget) -> Plan:
        """Divide a budget: units as for numbers, then this module's phases."""
        usual = super().plan(budget).phases
        kept = [phase for phase in usual if phase.name.startswith(("magnitudes", "centers", "shares of text"))]
        return Plan(budget, [*kept, *self.rest(1.0 - math.fsum(phase.share for phase in kept))])


def learn(federation: Federation, plan: Plan, settings: LossSettings) -> Learned:
    """Learn the prior; see the module's docstring."""
    coordinates = units.learn_units(federation, plan, settings.bounds, settings.texts)
    state = _Learner(federation, plan, coordinates, settings.loss, settings.classes)
    state.newton_rounds(0)
    state.grow()
    state.newton_rounds(1)
    return Learned(coordinates, state.harmless(), state.covariance(), 1.0, state.weak, state.other_law())


@dataclass
class _Learner:
    """The public state of the algorithm."""

    federation: Federation
    plan: Plan
    units: Coordinates
    loss: str
    classes: int
    prior: Prior = field(init=False)
    weak: bool = field(init=False)
    _start: Array = field(init=False)
    _newtons: list[Newton] = field(init=False)
    _groups: Array = field(init=False)
    _doubt: Array = field(init=False)
    _metric: Array = field(init=False)
    _constant: Array = field(init=False)
    _typicals: list[float] = field(init=False, default_factory=list)  # logarithms of typical norms of scores
    _unknown: list[float] = field(init=False, default_factory=lambda: list(_UNKNOWN))

    def __post_init__(self) -> None:
        size = self.units.size
        query = Level(self.loss, self.classes)
        levels, clear = query.levels(*self._mean(query, "level", "level", 1.0))
        self.weak = not clear
        self._start = np.hstack([levels[:, None], np.zeros((self.classes, size - 1))])
        variances = np.append(_INTERCEPT[self.loss], np.full(size - 1, _SLOPES[self.loss] / size))
        mean = self._start if self.classes > 1 else self._start[0]
        self.prior = Prior(mean, np.diag(np.sqrt(variances)), _NOISE, self.loss)
        self._newtons = [Newton(size, self.federation.n_users) for _ in range(self.classes)]
        self._groups = np.append(0.0, np.ones(size - 1))
        shares = LossInformationShares(self.units, self.prior)
        found = self._mean(shares, "information shares", "information shares", 1.0)
        self._metric, self._constant = evened(*found, np.diag(self.prior.root))
        self._doubt = np.array([1.0, 0.5, 0.5, 1.0])  # variances of the logarithms of the groups' variances

    def newton_rounds(self, stage: int) -> None:
        """Release the information under the current prior, then scores of which each moves the mean."""
        n, size = self.federation.n_users, self.units.size
        frozen, plain = self.prior, self._metric
        unclipped = LossInformation(self.units, frozen, plain, 1e300)
        norm = self._typical(unclipped, "information norm", f"information norm {stage + 1}", reach=12.0)
        information = replace(unclipped, clip=_INFORMATION_CLIP * norm)
        released, noise = self._mean(
            information, f"information {stage + 1}", f"information {stage + 1}", 1.2 * information.clip
        )
        entries = size * (size + 1) // 2
        metric, slope, slope_noise = preconditioned(unpack_symmetric(released[:entries], size), noise, plain)
        shares = self._shares(released[entries:], noise)
        rare = self._rare(unpack_symmetric(released[:entries], size), plain)
        for number in range(ROUNDS[stage]):
            label = f"{stage + 1}.{number + 1}"
            score = LossScore(self.units, replace(frozen, mean=self.prior.mean), metric, plain, information.clip)
            typical = self._typical(score, "score norm", f"score norm {label}", reach=8.0)
            clip = max(self._score_clip(typical, f"score {stage + 1}"), self._affordable(rare, f"score {stage + 1}"))
            measured = MeasuredLossScore(score, clip, np.tile(self._constant, self.classes))
            mean, noise = self._mean(measured, f"score {stage + 1}", f"score {label}", measured.bound)
            vector, gains, squares = measured.split(mean, noise, _USUAL)
            at = self.prior.mean.reshape(self.classes, size) - self._start
            moved = [
                newton.add(slope * (share * gains[:size, None]), part, place, noise, slope_noise, squares[:size] / n)
                for newton, share, part, place in zip(
                    self._newtons, shares, vector.reshape(self.classes, size), at, strict=True
                )
            ]
            self.prior = replace(self.prior, mean=(self._start + np.stack(moved)).reshape(self.prior.mean.shape))
            self._variances(label)
        self._metric = metric

    def grow(self) -> None:
        """Release the spread and give the covariance the directions that stand out of the noise."""
        plain = self.prior.root
        axes, sizes = turned(plain, self._metric)
        query = LossSpread(self.units, replace(self.prior, root=axes), 0.0)
        typical = self._typical(query, "spread norm", "spread norm", reach=8.0)
        edge = 1.12 * self._noise("spread") * math.sqrt(2.0 * self.units.size)
        least = max(_LEAST_SPREAD, min(_EDGE / max(edge, 1e-9), _MOST_SPREAD))
        measured = replace(query, clip=max(_SPREAD_CLIP * typical, least))
        mean, noise = self._mean(measured, "spread", "spread", measured.bound)
        change = changed(mean, noise, sizes, self.federation.n_users)
        if np.any(change):
            turn = np.linalg.solve(plain, axes)
            root, self._groups = grown(plain, turn @ change @ turn.T)
            self._change(root, self.prior.noise)
        self._doubt = np.maximum(self._doubt, np.array([0.05, 0.1, 0.1, 0.0]))
        self._unknown = [max(variance, _REGROWN) for variance in self._unknown]
        self._variances("growth")

    def harmless(self) -> Prior:
        """Return the prior; one of personal levels alone where nothing stands out of the noise."""
        if not self.weak:
            return self.prior
        own = np.append(OWN[self.loss], np.full(self.units.size - 1, 1e-3))
        usual = Level(self.loss, self.classes).levels(np.zeros(2 * self.classes), 1.0)[0]
        mean = np.hstack([usual[:, None], np.zeros((self.classes, self.units.size - 1))])
        return Prior(mean.reshape(self.prior.mean.shape), np.diag(own), _NOISE, self.loss)

    def other_law(self) -> float:
        """Return the share of users who follow the second distribution; 0 for several classes."""
        if self.classes > 1:
            return 0.0
        query = OtherLaw(self.units, self.prior.doubted(self.covariance()))
        share = query.share(*self._mean(query, "other law", "other law", query.bound))
        return share if not self.weak else 0.0

    def covariance(self) -> Array:
        """Return the covariance of the estimate of the mean, one matrix per class if there are several."""
        sizes = np.atleast_2d(self.prior.mean)
        found = np.stack(
            [newton.covariance() + self._of_variances(own) for newton, own in zip(self._newtons, sizes, strict=True)]
        )
        return found if self.classes > 1 else np.asarray(found[0])

    def _of_variances(self, mean: Array) -> Array:
        """Return the part of the covariance of a mean that comes from the uncertainty of the variances.

        An error of a variance is compensated by the mean (:meth:`_change`): by −½ the error in the intercept of log
        rates, and by a factor of all log odds.
        """
        columns = np.square(self.prior.root).sum(axis=0)
        if self.loss == "poisson":
            sizes = np.append(np.bincount(self._groups.astype(np.int64), columns, GROUPS), self.prior.noise)
            part = np.zeros((len(mean), len(mean)))
            part[0, 0] = 0.25 * float(np.square(sizes) @ self._doubt)
            return part
        sizes = np.array([columns[0], columns[1:].sum()])
        moved = 0.5 * _DRAWN * sizes / (1.0 + _DRAWN * columns.sum())
        return np.asarray(np.outer(mean, mean) * float(np.square(moved) @ np.array(self._unknown)))

    def _variances(self, label: str) -> None:
        """Correct the variances, if this is one of the rounds after which they are corrected."""
        if label in _PLACES[self.loss]:
            (self._evidences if self.loss == "logistic" else self._sizes)(label)

    def _evidences(self, label: str) -> None:
        """Correct the variances of intercepts and slopes by users' evidence."""
        size = self.units.size
        groups = [np.arange(size) == 0, np.arange(size) > 0][: min(size, 2)]
        scales = np.vstack([np.where(own, _TRIED[:, None], 1.0) for own in groups])
        stretches = np.array([self._stretch(self.prior.root * scale[:, None]) for scale in scales])
        query = Evidences(self.units, self.prior, scales, stretches)
        gains, noise = self._mean(query, "sizes", f"sizes {label}", query.bound)
        factors = np.ones(size)
        for number, (own, gain) in enumerate(zip(groups, gains.reshape(len(groups), -1), strict=True)):
            weights = int(own.sum())
            best, left = corrected_log(gain, noise, 2.0 * np.log(_TRIED), self._unknown[number], weights)
            factors[own], self._unknown[number] = math.exp(0.5 * best), left + _DRIFT
        self._change(self.prior.root * factors[:, None], self.prior.noise)

    def _stretch(self, root: Array) -> float:
        """Return the factor of log odds that keeps shares of classes if ``root`` replaces the prior's."""
        before, after = (float(np.sum(np.square(one))) for one in (self.prior.root, root))
        return math.sqrt((1.0 + _DRAWN * after) / (1.0 + _DRAWN * before))

    def _sizes(self, label: str) -> None:
        """Correct the variances; estimates of successive rounds are weighted by their known noise."""
        query = LossSizes(self.units, self.prior, self._groups)
        bound = max(query.bound, min(_SMALL_SIZES / max(self._noise("sizes"), 1e-9), _MOST_SIZES))
        factors, noise = query.factors(*self._mean(query, "sizes", f"sizes {label}", bound))
        variance = np.square(noise) + 0.01
        kept = self._doubt / (self._doubt + variance)
        self._doubt = self._doubt * (1.0 - kept) + 0.03
        factors = factors**kept
        scales = np.sqrt(factors[self._groups.astype(np.int64)])
        spread = min(max(self.prior.noise * float(factors[-1]), 1e-4), 10.0) if self.loss == "poisson" else _NOISE
        self._change(self.prior.root * scales, spread)

    def _change(self, root: Array, noise: float) -> None:
        """Change the variances, and the mean so that rows keep their mean counts or their shares of classes.

        Earlier rounds measured the mean under the earlier variances, so their measurements are moved in the same way.
        """
        if self.loss == "poisson":
            before, after = (float(np.sum(np.square(one))) for one in (self.prior.root, root))
            moved = np.append(-0.5 * (after + noise - before - self.prior.noise), np.zeros(self.units.size - 1))
            self._start = self._start + moved  # rounds are stored relative to the start
            mean = self.prior.mean + moved
        else:
            stretch = self._stretch(root)
            self._start = self._start * stretch
            for newton in self._newtons:
                newton.stretch(stretch)
            mean = self.prior.mean * stretch
        self.prior = replace(self.prior, mean=mean, root=root, noise=noise)

    def _shares(self, released: Array, noise: float) -> Array:
        """Return the information of each class in units of their mean."""
        if self.classes == 1:
            return np.ones(1)
        floor = max(2.0 * noise, 0.1 * float(np.abs(released).mean()), 1e-12)
        shares = np.maximum(released, floor)
        return np.asarray(shares / shares.mean())

    def _rare(self, released: Array, metric: Array) -> float:
        """Return how far out the scores of users of rare counts are who have some; 0 for classes.

        A user who expects Λ counts has the information Λ/(1 + Λσ²) about the intercept, and j counts have a score of
        about j/√Λ, where scores have a mean square of one.
        """
        if self.loss != "poisson":
            return 0.0
        back = np.linalg.inv(metric)
        known = float((back @ released @ back)[0, 0]) * float(np.trace(released))
        left = 1.0 - known * float(self.prior.covariance[0, 0])
        expected = max(known, 1e-6) / max(left, 0.1)
        return _COUNTS / math.sqrt(expected)

    def _affordable(self, clip: float, phase: str) -> float:
        """Return ``clip``, or the largest whose noise is a few times the sampling error of scores."""
        sampling = 1.0 / math.sqrt(self.federation.n_users * self.units.size)
        return min(clip, _AFFORDED * sampling / max(self._noise(phase), 1e-9))

    def _score_clip(self, typical: float, phase: str) -> float:
        """Return the clip of scores: above the few large ones where most are small, as all rounds so far say."""
        self._typicals.append(math.log(max(typical, 1e-3)))
        usual = math.exp(math.fsum(self._typicals) / len(self._typicals))
        sampling = 1.0 / math.sqrt(self.federation.n_users * self.units.size)
        wide = min(0.5 * sampling / max(self._noise(phase), 1e-9), _MOST_SCORE)
        return max(_SCORE_CLIP * typical, min(_RARE_SCORE / usual**2, _RAREST), wide)

    def _noise(self, phase: str) -> float:
        """Return the noise of a mean with a clip of one."""
        return self.federation.sum_sigma(self.plan.event(phase, clip=1.0)) / self.federation.n_users

    def _typical(self, query: Query, phase: str, name: str, *, reach: float) -> float:
        return typical_norm(self.federation, query, self.plan.event(phase, clip=1.0), name, reach=reach).size

    def _mean(self, query: Query, phase: str, name: str, clip: float) -> tuple[Array, float]:
        return noisy_mean(self.federation, query, self.plan.event(phase, clip=clip), name)
