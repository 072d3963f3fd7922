"""From releases to ε.

Full participation: a release with sensitivity Δ and noise σ is μ-Gaussian-DP with μ = Δ/σ, adaptive
composition adds squares, and ε follows from the exact profile (Balle and Wang 2018; Dong, Roth and
Su 2022)

    δ(ε) = Φ(−ε/μ + μ/2) − e^ε Φ(−ε/μ − μ/2).

Poisson sampling: privacy-loss distributions from ``dp_accounting``, whose PLD accountant handles each
adjacency. (Its RDP accountant does not double a Gaussian's sensitivity under replace-one and is not used.)
Where both apply they are compared and a disagreement raises: an accountant that is wrong must not certify.

Noise drawn on a grid is not the ideal Gaussian rounded to that grid, but the two laws have densities within
a factor e^±η of each other (``slack``; see :mod:`tacit.privacy.noise`). A mechanism within e^±η of an (ε, δ)
one is (ε + 2η, e^η δ): pay η twice in ε and once in δ.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

from scipy.optimize import brentq
from scipy.special import log_ndtr

from tacit.privacy.guarantee import Adjacency, GaussianEvent, Sensitivity, check_target

_CROSS_CHECK_TOLERANCE = 0.02
_INTERVAL = 1e-4
_LEAST_SLACK = 1e-10  # far above what noise on a grid needs, far below what shows


class AccountingError(RuntimeError):
    """Two accountants disagree about the same releases, so neither is believed."""


def delta_of(mu: float, epsilon: float) -> float:
    """δ at ε of a μ-Gaussian-DP mechanism.

    >>> round(delta_of(1.0, 1.0), 4)
    0.1269
    """
    if mu == 0:
        return 0.0
    if math.isinf(mu):
        return 1.0
    upper = float(log_ndtr(-epsilon / mu + mu / 2))
    lower = epsilon + float(log_ndtr(-epsilon / mu - mu / 2))
    if lower >= upper:
        return 0.0
    return math.exp(upper) * -math.expm1(lower - upper)


def epsilon_of(mu: float, delta: float) -> float:
    """Smallest ε for which a μ-Gaussian-DP mechanism is (ε, δ)-DP.

    >>> round(epsilon_of(0.2681, 1e-5), 3)
    1.0
    """
    check_target(1.0, delta)
    if math.isinf(mu):
        return math.inf
    if delta_of(mu, 0.0) <= delta:
        return 0.0
    high = 1.0
    while delta_of(mu, high) > delta:
        high *= 2
    return _smallest(lambda epsilon: delta_of(mu, epsilon) <= delta, 0.0, high)


def mu_of(epsilon: float, delta: float) -> float:
    """Largest μ for which a μ-Gaussian-DP mechanism is (ε, δ)-DP.

    >>> round(mu_of(1.0, 1e-6), 4)
    0.2367
    """
    check_target(epsilon, delta)
    if math.isinf(epsilon):
        return math.inf
    high = 1.0
    while delta_of(high, epsilon) <= delta:
        high *= 2
    root = float(brentq(lambda mu: delta_of(mu, epsilon) - delta, 1e-12, high, xtol=1e-300, rtol=1e-14))
    while delta_of(root, epsilon) > delta:
        root *= 1 - 1e-13
    return root


def total_mu(events: Iterable[GaussianEvent], adjacency: Adjacency) -> float:
    """Gaussian-DP parameter of full-participation releases together."""
    return math.hypot(*(event.mu(adjacency) for event in events))


def compose(
    events: Sequence[GaussianEvent], adjacency: Adjacency, delta: float, *, interval: float = _INTERVAL
) -> float:
    """Return ε at ``delta`` of all ``events`` together, chosen adaptively, under ``adjacency``.

    ``interval`` is the spacing of privacy losses where there is no closed form: ε is an upper bound at any, closer at
    smaller ones.

    >>> from tacit.privacy.guarantee import Sensitivity
    >>> event = GaussianEvent(sigma=10.0, sensitivity=Sensitivity.of_clip(1.0))
    >>> round(compose([event] * 4, Adjacency.ZERO_OUT, 1e-5), 3)
    0.726
    """
    check_target(1.0, delta)
    adjacency = Adjacency(adjacency)
    if any(not event.private for event in events):
        return math.inf
    if not events:
        return 0.0
    units = {event.sensitivity.unit for event in events}
    if len(units) > 1:
        raise AccountingError(f"releases must protect one unit to be added up. Found {sorted(units)}.")
    slack = math.fsum(event.slack for event in events)
    if all(event.sampling_rate == 1.0 for event in events):
        mu = total_mu(events, adjacency)
        return epsilon_of(mu, delta * math.exp(-slack)) + 2 * slack
    return _pld_epsilon(events, adjacency, delta * math.exp(-slack), interval) + 2 * slack


def cross_check(events: Sequence[GaussianEvent], adjacency: Adjacency, delta: float) -> float:
    """Return ε by the closed form after comparing it with privacy-loss distributions.

    Costs seconds; used by ``tacit verify`` and by tests, not in the loop.
    """
    closed = compose(events, adjacency, delta)
    if math.isinf(closed):
        return closed
    slack = math.fsum(event.slack for event in events)
    numeric = _pld_epsilon(events, adjacency, delta * math.exp(-slack)) + 2 * slack
    # The numeric one is an upper bound on a discrete grid: it may lie a little above, never far below.
    if abs(numeric - closed) > _CROSS_CHECK_TOLERANCE * max(closed, 0.05):
        raise AccountingError(
            f"the closed form gives epsilon = {closed:.4f} under {adjacency}, privacy-loss "
            f"distributions give {numeric:.4f}. They must agree to {_CROSS_CHECK_TOLERANCE:.0%}."
        )
    return closed


def _smallest(holds: Callable[[float], bool], low: float, high: float) -> float:
    """Bisect to the smallest point at which a monotone condition holds; errs on the side that holds."""
    while high - low > 1e-12 * max(1.0, high):
        middle = (low + high) / 2
        if holds(middle):
            high = middle
        else:
            low = middle
    return high


def _pld_epsilon(
    events: Sequence[GaussianEvent], adjacency: Adjacency, delta: float, interval: float = _INTERVAL
) -> float:
    counts: Counter[tuple[float, float]] = Counter()
    for event in events:
        # dp_accounting doubles the sensitivity itself under REPLACE_ONE, so it is told half of ours
        # there, which keeps the √2 of acute contributions. Not so under sampling: the mixtures it
        # compares are centred at ±1, and only twice the clip dominates every pair of neighbours.
        moved = event.sensitivity.under(adjacency)
        if adjacency is Adjacency.REPLACE_ONE:
            moved = moved / 2 if event.sampling_rate == 1.0 else event.sensitivity.zero_out
        counts[rounded_down(event.sigma / moved), event.sampling_rate] += 1
    return _pld_epsilon_of(tuple(sorted(counts.items())), adjacency, rounded_down(delta), interval)


@lru_cache(maxsize=256)
def _pld_epsilon_of(
    counts: tuple[tuple[tuple[float, float], int], ...], adjacency: Adjacency, delta: float, interval: float
) -> float:
    """Take seconds, so what was asked before is remembered: a run asks about its plan again before every release."""
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    relation = {
        Adjacency.ZERO_OUT: dp_accounting.NeighboringRelation.REPLACE_SPECIAL,
        Adjacency.REPLACE_ONE: dp_accounting.NeighboringRelation.REPLACE_ONE,
    }[adjacency]
    accountant = PLDAccountant(relation, value_discretization_interval=interval)
    for (noise_multiplier, rate), count in counts:
        step: dp_accounting.DpEvent = dp_accounting.GaussianDpEvent(noise_multiplier)
        if rate < 1.0:
            step = dp_accounting.PoissonSampledDpEvent(rate, step)
        accountant.compose(dp_accounting.SelfComposedDpEvent(step, count))
    return float(accountant.get_epsilon(delta))


def same_for_equal_costs(event: GaussianEvent) -> GaussianEvent:
    """Return an event of clip 1 that costs as much, or a little more; the same one for all that cost the same.

    Clips are found along the way and slack is known late, so a release and its plan are equal in this form only.

    >>> from tacit.privacy.guarantee import Sensitivity
    >>> first, second = (GaussianEvent(sigma=3.3 * c, sensitivity=Sensitivity.of_clip(c)) for c in (1.0, 0.7))
    >>> same_for_equal_costs(first) == same_for_equal_costs(second)
    True
    """
    clip = event.sensitivity.zero_out
    acute = event.sensitivity.replace_one <= math.sqrt(2.0) * clip
    return replace(
        event,
        sigma=rounded_down(event.sigma / clip),
        sensitivity=Sensitivity.of_clip(1.0, acute=acute, unit=event.sensitivity.unit),
        slack=max(event.slack, _LEAST_SLACK),
    )


def rounded_down(value: float) -> float:
    """Drop all but eleven digits, so that equal costs are found equal whatever their clips.

    Less noise, or a smaller δ, than there is: what is charged is never too little.

    >>> rounded_down(0.1 + 0.2) == rounded_down(0.3) <= 0.3
    True
    """
    if not (math.isfinite(value) and value > 0):
        return value
    unit = 10.0 ** (math.floor(math.log10(value)) - 10)
    # A relative 1e-12 apart counts as equal; it is taken off again, so that rounding never goes up.
    return math.floor(value / unit * (1 + 1e-12)) * unit * (1 - 1e-12)
