"""Lower bounds on ε from runs in two neighbouring worlds.

An attacker who sees one output of a mechanism and guesses in which of two neighbouring worlds it ran has power
P(E | inside) at false-alarm rate P(E | outside). (ε, δ)-privacy implies P(E | inside) ≤ e^ε P(E | outside) + δ for
every event E, and the same with the worlds exchanged. So an event that is frequent in one world and rare in the other
is evidence against a small ε: with confidence intervals for the two rates (Clopper and Pearson 1934, exact for any
sample size)

    ε ≥ log((lower end of P(E | inside) − δ) / upper end of P(E | outside)).

The event is chosen on a quarter of the runs and measured on the rest, so choosing it costs no confidence.

If the claim is Gaussian differential privacy (sums with Gaussian noise, no sampling), the whole trade-off curve is
claimed. Then μ ≥ Φ⁻¹(power) − Φ⁻¹(false alarms) can use the middle of the two distributions, where samples are dense:
a far stronger test of the same claim with the same number of runs. Alternatively, the share of correct guesses needs
only one interval instead of two: (power + 1 − false alarms)/2 ≤ Φ(μ/2). The guesses of both worlds are independent.
For any probabilities with the same mean, so many correct guesses are at most as likely as with equal probabilities
(Hoeffding 1956, theorem 4: for counts above the mean), so the binomial interval holds. Which of the two intervals is
used is chosen together with the event.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import expit
from scipy.stats import beta, binom, norm, t

from tacitly.arrays import Array
from tacitly.privacy.accounting import epsilon_of

# Confidence used to choose the event: with a lower one, the luckiest of many rare events would be chosen.
CAUTION = 0.9999

_FEWEST = 8  # minimum number of runs for estimating the spread between runs


@dataclass(frozen=True, kw_only=True)
class Bound:
    """A lower bound on ε, and the largest bound (``ceiling``) that this number of runs could prove."""

    epsilon: float
    ceiling: float
    delta: float
    confidence: float
    runs: int

    def __str__(self) -> str:
        return (
            f"ε ≥ {self.epsilon:.2f} at δ = {self.delta:g} ({self.confidence:.0%} confidence; "
            f"{self.runs} runs could have proved at most {self.ceiling:.1f})"
        )


@dataclass(frozen=True)
class Event:
    """A statistic lies beyond a threshold; ``swapped`` if that is more frequent in the outside world.

    ``guesses``: measured by the share of correct guesses in both worlds together, not by the two rates.
    """

    column: int
    threshold: float
    above: bool
    swapped: bool
    guesses: bool = False

    def rates(self, inside: Array, outside: Array) -> tuple[int, int]:
        """Return the number of runs with the event where it should be frequent, and where it should be rare."""
        counts = []
        for sample in (inside, outside):
            values = sample[:, self.column]
            counts.append(int(np.count_nonzero(values > self.threshold if self.above else values < self.threshold)))
        return (counts[1], counts[0]) if self.swapped else (counts[0], counts[1])


def rate_at_least(successes: int, trials: int, confidence: float) -> float:
    """Return the lower end of a one-sided confidence interval for a probability.

    >>> round(rate_at_least(10, 10, 0.95), 4)
    0.7411
    """
    return 0.0 if successes == 0 else float(beta.ppf(1 - confidence, successes, trials - successes + 1))


def rate_at_most(successes: int, trials: int, confidence: float) -> float:
    """Return the upper end of a one-sided confidence interval for a probability.

    >>> round(rate_at_most(0, 10, 0.95), 4)
    0.2589
    """
    return 1.0 if successes == trials else float(beta.ppf(confidence, successes + 1, trials - successes))


def from_counts(frequent: int, rare: int, runs: int, delta: float, confidence: float = 0.95) -> float:
    """Return the ε proved by an event seen ``frequent`` times in one world and ``rare`` times in the other.

    >>> round(from_counts(100, 0, 100, 1e-5), 2)
    3.28
    """
    each = 1 - (1 - confidence) / 2
    often, seldom = rate_at_least(frequent, runs, each), rate_at_most(rare, runs, each)
    return max(0.0, math.log((often - delta) / seldom)) if often > delta else 0.0


def mu_from_counts(frequent: int, rare: int, runs: int, confidence: float = 0.95) -> float:
    """Return the Gaussian-DP parameter μ proved by such an event, if the trade-off curve is Gaussian.

    >>> round(mu_from_counts(600, 500, 1000), 2)
    0.09
    """
    each = 1 - (1 - confidence) / 2
    often, seldom = rate_at_least(frequent, runs, each), rate_at_most(rare, runs, each)
    return max(0.0, float(norm.ppf(often) - norm.ppf(seldom)))


def mu_from_guesses(frequent: int, rare: int, runs: int, confidence: float = 0.95) -> float:
    """Return the μ proved by how often the event guesses the world correctly, if the trade-off curve is Gaussian.

    >>> round(mu_from_guesses(600, 500, 1000), 2)
    0.16
    """
    return max(0.0, 2 * float(norm.ppf(rate_at_least(frequent + runs - rare, 2 * runs, confidence))))


def from_runs(
    inside: npt.ArrayLike, outside: npt.ArrayLike, delta: float, *, confidence: float = 0.95, gaussian: bool = False
) -> Bound:
    """Bound ε from an attacker's statistics in runs of two neighbouring worlds.

    Parameters
    ----------
    inside, outside
        The attacker's statistics, one row per run. Several columns are several attacks; the best is chosen on every
        fourth run and measured on the rest.
    delta
        δ at which ε is stated.
    confidence
        Probability that the bound holds.
    gaussian
        Whether the claim is Gaussian differential privacy, so that its whole trade-off curve can be tested.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> bound = from_runs(rng.normal(1.0, 1, 20000), rng.normal(0.0, 1, 20000), 1e-5, gaussian=True)
    >>> 3.5 < bound.epsilon < epsilon_of(1.0, 1e-5)
    True
    """
    samples = [np.asarray(sample, dtype=np.float64) for sample in (inside, outside)]
    samples = [sample[:, None] if sample.ndim == 1 else sample for sample in samples]
    runs = min(len(sample) for sample in samples)
    if runs < 4 or samples[0].shape[1] != samples[1].shape[1]:
        shapes = [sample.shape for sample in samples]
        raise ValueError(f"expected at least four runs of each world, with the same statistics. Found {shapes}.")
    here, there = (sample[:runs] for sample in samples)
    choosing = np.arange(runs) % 4 == 0
    chosen = _best_event(here[choosing], there[choosing], delta, CAUTION, gaussian)
    held = int(np.sum(~choosing))

    def proved(frequent: int, rare: int) -> float:
        if gaussian:
            mu = (mu_from_guesses if chosen.guesses else mu_from_counts)(frequent, rare, held, confidence)
            return epsilon_of(mu, delta)
        return from_counts(frequent, rare, held, delta, confidence)

    found = proved(*chosen.rates(here[~choosing], there[~choosing]))
    return Bound(epsilon=found, ceiling=proved(held, 0), delta=delta, confidence=confidence, runs=2 * runs)


def _best_event(inside: Array, outside: Array, delta: float, confidence: float, gaussian: bool) -> Event:
    """Return the event that would prove most on these runs: one-sided, thresholds log-spaced in tail count."""
    runs = len(inside)
    tails = np.unique(np.rint(np.geomspace(1, runs, 60)).astype(int))
    each = 1 - (1 - confidence) / 2
    best, event = -1.0, Event(0, 0.0, True, False)
    for column in range(inside.shape[1]):
        here, there = np.sort(inside[:, column]), np.sort(outside[:, column])
        ordered = np.sort(np.concatenate([here, there]))
        for above in (True, False):
            edge, beyond = (ordered[-1 - tails], ordered[-tails]) if above else (ordered[tails], ordered[tails - 1])
            # Halfway between two runs: if the worlds are far apart, the remaining runs fall on the same sides.
            with np.errstate(invalid="ignore"):
                thresholds = edge / 2 + beyond / 2
            thresholds = np.where(np.isfinite(thresholds), thresholds, edge)
            if above:
                counts = [runs - np.searchsorted(x, thresholds, side="right") for x in (here, there)]
            else:
                counts = [np.searchsorted(x, thresholds, side="left") for x in (here, there)]
            for swapped in (False, True):
                frequent, rare = reversed(counts) if swapped else counts
                often = np.nan_to_num(beta.ppf(1 - each, frequent, runs - frequent + 1))
                seldom = np.nan_to_num(beta.ppf(each, rare + 1, runs - rare), nan=1.0)
                with np.errstate(divide="ignore", invalid="ignore"):
                    worth = norm.ppf(often) - norm.ppf(seldom) if gaussian else np.log((often - delta) / seldom)
                worths = [worth]
                if gaussian:
                    right = frequent + runs - rare
                    least = np.nan_to_num(beta.ppf(1 - confidence, right, 2 * runs - right + 1))
                    worths.append(2 * norm.ppf(least))
                for guesses, worth in enumerate(worths):
                    index = int(np.argmax(worth := np.nan_to_num(worth, nan=-1.0)))
                    if worth[index] > best:
                        threshold = float(thresholds[index])
                        best, event = float(worth[index]), Event(column, threshold, above, swapped, bool(guesses))
    return event


def from_one_run(correct: int, guesses: int, canaries: int, delta: float, *, confidence: float = 0.95) -> Bound:
    """Bound ε from a single run with many canaries (Steinke, Nasr and Jagielski 2023).

    Each of ``canaries`` users took part or not by a fair coin; an attacker who saw the output guessed ``guesses`` of
    the coins, ``correct`` of them correctly. Under (ε, 0)-privacy the number of correct guesses is dominated by a
    binomial with success probability e^ε / (1 + e^ε); δ adds at most 2·δ·canaries times the steepest average of its
    tail.

    >>> from_one_run(90, 100, 1000, 1e-6).epsilon > 1.5
    True
    >>> from_one_run(50, 100, 1000, 1e-6).epsilon
    0.0
    """
    if not 0 <= correct <= guesses <= canaries:
        raise ValueError(
            "expected 0 ≤ correct guesses ≤ guesses ≤ canaries. "
            f"Found {correct} correct guesses, {guesses} guesses, {canaries} canaries."
        )

    def unlikely(right: int, epsilon: float) -> bool:
        chance = float(expit(epsilon))
        tail = float(binom.sf(right - 1, guesses, chance))
        below = np.cumsum(binom.pmf(np.arange(right - 1, -1, -1), guesses, chance))
        steepest = float(np.max(below / np.arange(1, right + 1))) if right else 0.0
        return tail + 2 * delta * canaries * steepest < 1 - confidence

    def proved(right: int) -> float:
        if not unlikely(right, 0.0):
            return 0.0
        low, high = 0.0, 1.0
        while unlikely(right, high):
            low, high = high, 2 * high
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (middle, high) if unlikely(right, middle) else (low, middle)
        return low

    return Bound(epsilon=proved(correct), ceiling=proved(guesses), delta=delta, confidence=confidence, runs=1)


def from_accuracy(right: npt.ArrayLike, delta: float, *, confidence: float = 0.95) -> Bound:
    """Bound ε of a claim of Gaussian privacy from the fraction of coins that an attacker guessed right in each run.

    Given the other coins, one canary's coin decides between two neighbouring worlds. So under μ-Gaussian privacy no
    attacker guesses it with a probability above Φ(μ/2). By linearity the same holds for the expected fraction of all
    coins of a run, even if the guesses depend on each other. Runs are independent, and each fraction is a mean of many
    guesses, so Student's t gives a confidence interval for that expectation.

    >>> bound = from_accuracy([0.54, 0.56, 0.55, 0.53, 0.55, 0.56, 0.54, 0.55], 1e-6)
    >>> 0.7 < bound.epsilon < epsilon_of(0.25, 1e-6) < bound.ceiling
    True
    """
    fractions = np.asarray(right, dtype=np.float64)
    runs = len(fractions)
    if runs < _FEWEST:
        raise ValueError(f"expected at least {_FEWEST} runs, to estimate the spread between runs. Found {runs}.")

    def proved(mean: float, spread: float) -> float:
        least = mean - float(t.ppf(confidence, runs - 1)) * spread / math.sqrt(runs)
        return epsilon_of(max(0.0, 2 * float(norm.ppf(least))), delta)

    spread = float(fractions.std(ddof=1))
    found = proved(float(fractions.mean()), spread)
    return Bound(epsilon=found, ceiling=proved(1.0, spread), delta=delta, confidence=confidence, runs=runs)
