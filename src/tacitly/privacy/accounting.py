"""The accountant: from releases to ε.

Full participation. A release with sensitivity Δ and noise σ is μ-Gaussian-DP with μ = Δ/σ, adaptive composition adds
the squares of μ, and ε follows from the exact profile (Balle and Wang 2018; Dong, Roth and Su 2022)

    δ(ε) = Φ(−ε/μ + μ/2) − e^ε Φ(−ε/μ − μ/2).

Choices (:class:`~tacitly.privacy.guarantee.SelectionEvent`) satisfy pure ε_j. Randomised response, whose privacy loss
is +ε_j or −ε_j with odds e^ε_j to 1, dominates every mechanism with pure ε_j (Kairouz, Oh and Viswanath 2015), and
dominating pairs compose adaptively (Zhu, Dong and Wang 2022). Privacy losses of independent mechanisms add up. So a
μ-Gaussian mechanism composed with choices has the following δ, exactly for this dominating pair:

    δ(ε) = E[ δ_μ(ε − S) ],   S = Σ ±ε_j.

At δ = 0, ε is Σ ε_j if there are no Gaussian releases, else infinite.

Poisson sampling. Privacy-loss distributions (PLD) from ``dp_accounting``, whose PLD accountant handles each adjacency.
(Its RDP accountant does not double a Gaussian's sensitivity under replace-one and is not used.) Tests compare the
closed form with the PLD where both apply.

Noise on a grid. The distribution of the noise drawn on a grid is within a factor e^±η of the ideal Gaussian rounded to
that grid (``slack``; see :mod:`tacitly.privacy.noise`). If M is within e^±η of an (ε, δ)-private M₀, then for
neighbours and any event A: P(M ∈ A) ≤ e^η P(M₀ ∈ A) ≤ e^η (e^ε P(M₀′ ∈ A) + δ) ≤ e^(ε + 2η) P(M′ ∈ A) + e^η δ. So η is
added twice to ε, and δ is multiplied by e^η.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from tacitly.privacy.guarantee import Adjacency, Event, GaussianEvent, SelectionEvent, Sensitivity, check_target

_INTERVAL = 1e-4
_LEAST_SLACK = 1e-10  # far above the slack of real grids, far below what is visible in ε
_MOST_LOSSES = 50_000
_MOST_SUMS = 2_000_000  # held in memory at a time
_MOST_COMPOSED = 1e6  # above it the ε are added, without loss: such responses are always true
_LEAST_MU = 1e-12
_SMALL_MU = 0.01  # below it the two terms of the profile would cancel: at 1e-9 four digits are left, at 1e-12 none


class AccountingError(RuntimeError):
    """Releases that cannot be composed, or two accountants that disagree about the same releases."""


def delta_of(mu: float, epsilon: float) -> float:
    """δ at ε (of either sign) of a μ-Gaussian-DP mechanism.

    >>> round(delta_of(1.0, 1.0), 4)
    0.1269
    """
    return _profile_at(mu, epsilon) if 0 < mu < math.inf else float(_profile(mu, np.array([epsilon]))[0])


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


def mu_of(epsilon: float, delta: float, pure: Sequence[float] = ()) -> float:
    """Largest μ for which a μ-Gaussian-DP mechanism, composed with choices of ``pure`` ε, is (ε, δ)-DP.

    >>> round(mu_of(1.0, 1e-6), 4), round(mu_of(1.0, 1e-6, [0.2]), 4)
    (0.2367, 0.1984)
    """
    return _mu_of(epsilon, delta, tuple(pure))


@lru_cache(4096)  # plans ask for the same values repeatedly
def _mu_of(epsilon: float, delta: float, pure: tuple[float, ...]) -> float:
    check_target(epsilon, delta)
    if math.isinf(epsilon):
        return math.inf
    if not added(pure) < epsilon:
        raise ValueError(
            f"choices must cost less than epsilon = {epsilon:.6g}, to leave some of it for noisy sums. "
            f"Found {added(pure):.6g}."
        )
    losses = worst_losses(pure)

    def spent(mu: float) -> float:
        return mixed_delta(mu, losses, epsilon)

    low, high = _LEAST_MU, 1.0
    if spent(low) > delta:
        raise ValueError(
            f"choices that cost {added(pure):.12g} leave too little of epsilon = {epsilon:.12g} for noisy sums. "
            "Reduce their share."
        )
    while spent(high) <= delta:
        high *= 2
    root = _largest(lambda mu: spent(mu) <= delta, low, high) if not pure else _root(spent, delta, low, high)
    while spent(root) > delta:
        root *= 1 - 1e-13
    return root


Law = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]
"""Privacy losses and the probability of each."""


def worst_losses(pure: Sequence[float]) -> Law:
    """Distribution of the total privacy loss of randomised responses with these ε.

    Equal ε give exactly a binomial distribution. If different ε give too many sums for a table, the distribution is
    moved to fewer points in a way that can only overstate δ (:func:`_sums`).

    >>> losses, chances = worst_losses([1.0, 1.0])
    >>> losses.tolist(), chances.round(4).tolist()
    ([-2.0, 0.0, 2.0], [0.0723, 0.3932, 0.5344])
    """
    law: Law = (np.zeros(1), np.ones(1))
    if pure:
        from scipy.special import gammaln  # here, so that what has no choices to account for starts without SciPy
    for epsilon, count in sorted(Counter(pure).items()):
        truths = np.arange(count + 1.0)
        log_true = -math.log1p(math.exp(-epsilon))  # log-probability of a true response; a false one has e^-ε of it
        ways = gammaln(count + 1.0) - gammaln(truths + 1.0) - gammaln(count - truths + 1.0)
        more: Law = (epsilon * (2 * truths - count), np.exp(ways + count * log_true - epsilon * (count - truths)))
        law = _sums(law, more)
    return law


def mixed_delta(mu: float, law: Law, epsilon: float) -> float:
    """δ at ε of a μ-Gaussian-DP mechanism composed with a pure one that has this distribution of losses."""
    return float(law[1] @ _profile(mu, epsilon - law[0]))


def total_mu(events: Iterable[GaussianEvent], adjacency: Adjacency) -> float:
    """Gaussian-DP parameter μ of the composition of full-participation releases."""
    return math.hypot(*(event.mu(adjacency) for event in events))


def compose(events: Sequence[Event], adjacency: Adjacency, delta: float, *, interval: float = _INTERVAL) -> float:
    """Return ε at ``delta`` of the adaptive composition of all ``events`` under ``adjacency``.

    ``interval`` is the spacing of the privacy-loss grid where there is no closed form. ε is an upper bound at any
    spacing, and tighter at smaller ones.

    >>> from tacitly.privacy.guarantee import Sensitivity
    >>> event = GaussianEvent(sigma=10.0, sensitivity=Sensitivity.of_clip(1.0))
    >>> round(compose([event] * 4, Adjacency.ZERO_OUT, 1e-5), 3)
    0.726
    """
    if delta != 0:
        check_target(1.0, delta)
    adjacency = Adjacency(adjacency)
    if any(not event.private for event in events):
        return math.inf
    if not events:
        return 0.0
    units = {event.sensitivity.unit for event in events}
    if len(units) > 1:
        raise AccountingError(f"releases must protect the same unit to be composed. Found {sorted(units)}.")
    sums = [event for event in events if isinstance(event, GaussianEvent)]
    pure = [event.epsilon(adjacency) for event in events if isinstance(event, SelectionEvent)]
    if delta == 0:
        return math.inf if sums else added(pure)
    slack = math.fsum(event.slack for event in sums)
    inner = delta * math.exp(-slack)
    if any(event.sampling_rate < 1.0 for event in sums):
        # The ε of choices is simply added to that of sampled sums: sound, and no plan mixes them.
        return _pld_epsilon(sums, adjacency, inner, interval) + 2 * slack + added(pure)
    mu = total_mu(sums, adjacency)
    alone = epsilon_of(mu, inner)
    if not pure:
        return alone + 2 * slack
    most = alone + added(pure)
    if most > _MOST_COMPOSED:
        return most + 2 * slack
    losses = worst_losses(pure)
    if mixed_delta(mu, losses, 0.0) <= inner:
        return 2 * slack
    if mixed_delta(mu, losses, most) > inner:  # possible if losses were rounded up to a grid
        return most + 2 * slack
    return _smallest(lambda epsilon: mixed_delta(mu, losses, epsilon) <= inner, 0.0, most) + 2 * slack


def _sums(law: Law, more: Law) -> Law:
    """Distribution of the sum of two independent losses, moved to a grid if there are too many values.

    On a grid, the probability of each loss is split between the two neighbouring points so that the total mass of both
    worlds is kept: ΣP and ΣP·e^(−loss). This is a mean-preserving spread of e^(−loss), and δ(ε) = E(1 − e^(ε − loss))₊
    is convex in e^(−loss), so splitting can only raise δ, also in composition with anything else, and by no more than
    the order of the squared spacing (Doroshenko et al. 2022, "connect the dots").
    """
    size = law[0].size * more[0].size
    if size <= _MOST_LOSSES:
        return np.add.outer(law[0], more[0]).ravel(), np.multiply.outer(law[1], more[1]).ravel()
    low, high = law[0].min() + more[0].min(), law[0].max() + more[0].max()
    points, kept = np.linspace(low, high, _MOST_LOSSES), np.zeros(_MOST_LOSSES)
    step = points[1] - points[0]
    for start in range(0, more[0].size, batch := max(1, _MOST_SUMS // law[0].size)):
        losses = np.add.outer(law[0], more[0][start : start + batch]).ravel()
        chances = np.multiply.outer(law[1], more[1][start : start + batch]).ravel()
        below = np.clip(((losses - low) / step).astype(np.int64), 0, _MOST_LOSSES - 2)
        share = np.expm1(-np.clip(losses - points[below], 0.0, step)) / math.expm1(-step)
        kept += np.bincount(below, chances * (1 - share), _MOST_LOSSES)
        kept += np.bincount(below + 1, chances * share, _MOST_LOSSES)
    return points, kept


def _profile(mu: float, epsilon: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """δ of a μ-Gaussian-DP mechanism at each ε, of either sign."""
    if mu == 0:
        return np.maximum(0.0, -np.expm1(np.minimum(epsilon, 0.0)))
    if math.isinf(mu):
        return np.ones_like(epsilon)
    if epsilon.size == 1:
        return np.full_like(epsilon, _profile_at(mu, float(epsilon[0])))
    from scipy.special import log_ndtr

    upper = log_ndtr(-epsilon / mu + mu / 2)
    lower = epsilon + log_ndtr(-epsilon / mu - mu / 2)
    return np.where(lower >= upper, 0.0, np.exp(upper) * -np.expm1(np.minimum(lower - upper, 0.0)))


def _profile_at(mu: float, epsilon: float) -> float:
    """Return :func:`_profile` at one ε, for 0 < μ < ∞: the most frequent case, which needs no SciPy.

    With x = ε/μ and the Mills ratio M = Φ(−t)/φ(t), whose derivative is tM(t) − 1, the profile is the integral of
    φ(x − μ/2)·(1 − tM(t)) for t within μ/2 of x. Where μ is small, by Gauss's rule with three nodes.
    """
    if mu < _SMALL_MU:
        if epsilon < 0:
            return math.exp(epsilon) * _profile_at(mu, -epsilon) - math.expm1(epsilon)
        x, step = epsilon / mu, mu * math.sqrt(0.15)
        density = math.exp(-0.5 * (x - mu / 2) ** 2) / math.sqrt(2 * math.pi) if x < 40 else 0.0
        mean = (5 * _mills_left(x - step) + 8 * _mills_left(x) + 5 * _mills_left(x + step)) / 18
        return mu * density * mean
    upper = log_normal(-epsilon / mu + mu / 2)
    lower = epsilon + log_normal(-epsilon / mu - mu / 2)
    return 0.0 if lower >= upper else math.exp(upper) * -math.expm1(lower - upper)


def _mills_left(t: float) -> float:
    """Return 1 − tM(t) with the Mills ratio M(t) = Φ(−t)/φ(t), for t above −1: without cancellation where t is large.

    >>> _mills_left(0.0), round(_mills_left(1.0), 6), round(_mills_left(100.0) * 100.0**2, 3)
    (1.0, 0.34432, 1.0)
    """
    if t < 3:
        return 1.0 - t * math.sqrt(math.pi / 2) * math.exp(t * t / 2) * math.erfc(t * math.sqrt(0.5))
    tail = 0.0  # Laplace's continued fraction: M = 1/(t + 1/(t + 2/(t + …)))
    for k in range(120, 0, -1):
        tail = k / (t + tail)
    return tail / (t + tail)


def log_normal(x: float) -> float:
    """Return log Φ(x), with a relative error of a few last bits.

    Far out, Φ(x) = φ(x)/|x|·(1 − 1/x² + 3/x⁴ − 15/x⁶ + …); beyond 20 standard deviations the next term is below 10⁻¹³,
    and the logarithm above 200.

    >>> round(log_normal(0.0), 6), round(log_normal(-30.0), 3), log_normal(40.0)
    (-0.693147, -454.321, -0.0)
    """
    if x > 0:
        return math.log1p(-0.5 * math.erfc(x * math.sqrt(0.5)))
    if x > -20:
        return math.log(0.5 * math.erfc(-x * math.sqrt(0.5)))
    if math.isinf(x):
        return -math.inf
    term = total = 1.0
    for odd in (1, 3, 5, 7, 9, 11):
        term *= -odd / x / x
        total += term
    return -0.5 * x * x - math.log(-x) - 0.5 * math.log(2 * math.pi) + math.log(total)


def added(pure: Iterable[float]) -> float:
    """Return Σ ε, or infinity if the sum overflows."""
    try:
        return math.fsum(pure)
    except OverflowError:
        return math.inf


def _smallest(holds: Callable[[float], bool], low: float, high: float) -> float:
    """Bisect for the smallest point at which a monotone condition holds; the result is a point where it holds."""
    while high - low > 1e-12 * max(1.0, high):
        middle = (low + high) / 2
        if holds(middle):
            high = middle
        else:
            low = middle
    return high


def _largest(holds: Callable[[float], bool], low: float, high: float) -> float:
    """Bisect for the largest positive point at which a monotone condition holds: at ``low`` it does."""
    while high - low > 1e-14 * high:
        middle = (low + high) / 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return low


def _root(spent: Callable[[float], float], delta: float, low: float, high: float) -> float:
    """Return where a function of thousands of numbers, which takes a while, reaches δ."""
    from scipy.optimize import brentq

    return float(brentq(lambda mu: spent(mu) - delta, low, high, xtol=1e-300, rtol=1e-14))


def _pld_epsilon(
    events: Sequence[GaussianEvent], adjacency: Adjacency, delta: float, interval: float = _INTERVAL
) -> float:
    counts: Counter[tuple[float, float]] = Counter()
    for event in events:
        # dp_accounting itself doubles the sensitivity under REPLACE_ONE, so it gets half of ours, which keeps the √2 of
        # acute contributions. Under sampling it compares mixtures centred at ±1, and only a distance of twice the clip
        # dominates every pair of neighbours, so acute contributions get no discount.
        moved = event.sensitivity.under(adjacency)
        if adjacency is Adjacency.REPLACE_ONE:
            moved = moved / 2 if event.sampling_rate == 1.0 else event.sensitivity.zero_out
        counts[rounded_down(event.sigma / moved), event.sampling_rate] += 1
    return _pld_epsilon_of(tuple(sorted(counts.items())), adjacency, rounded_down(delta), interval)


@lru_cache(maxsize=256)
def _pld_epsilon_of(
    counts: tuple[tuple[tuple[float, float], int], ...], adjacency: Adjacency, delta: float, interval: float
) -> float:
    """Compose sampled releases; cached, because it takes seconds and a run asks about its plan before every release."""
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


def same_for_equal_costs(event: Event) -> Event:
    """Return an event with clip 1 that costs the same or slightly more, identical for all events of equal cost.

    Clips may be chosen during a run, and slack is known only late, so a release can be compared with its plan only in
    this form.

    >>> from tacitly.privacy.guarantee import Sensitivity
    >>> first, second = (GaussianEvent(sigma=3.3 * c, sensitivity=Sensitivity.of_clip(c)) for c in (1.0, 0.7))
    >>> same_for_equal_costs(first) == same_for_equal_costs(second)
    True
    """
    if isinstance(event, SelectionEvent):
        return event
    clip = event.sensitivity.zero_out
    acute = event.sensitivity.replace_one <= math.sqrt(2.0) * clip
    return replace(
        event,
        sigma=rounded_down(event.sigma / clip),
        sensitivity=Sensitivity.of_clip(1.0, acute=acute, unit=event.sensitivity.unit),
        slack=max(event.slack, _LEAST_SLACK),
    )


def rounded_down(value: float) -> float:
    """Round down to eleven significant digits, so that equal costs compare equal whatever their clips.

    Rounding down understates the noise (or δ), so the cost is never understated.

    >>> rounded_down(0.1 + 0.2) == rounded_down(0.3) <= 0.3
    True
    """
    if not (math.isfinite(value) and value > 0):
        return value
    unit = 10.0 ** (math.floor(math.log10(value)) - 10)
    # Values within a relative 1e-12 count as equal; that is subtracted again, so that the result is never rounded up.
    return math.floor(value / unit * (1 + 1e-12)) * unit * (1 - 1e-12)


def concentrated(events: Sequence[Event], adjacency: Adjacency) -> tuple[float | None, float | None]:
    """Return μ (Gaussian DP) and ρ (zero-concentrated DP) of full-participation events; None where there is no number.

    Gaussians compose as μ² = Σ μᵢ², and a μ-GDP Gaussian is μ²/2-zCDP, on a grid too (Canonne, Kamath and Steinke
    2020, Theorem 4: the discrete Gaussian has the ρ of the continuous one). A choice of pure ε is ε²/2-zCDP (Bun and
    Steinke 2016, Proposition 3.3) and has no μ. Sampling has neither in closed form. The noise of float64 is taken as
    what it approximates.

    >>> concentrated([GaussianEvent(sigma=10.0, sensitivity=Sensitivity.of_clip(1.0))] * 4, Adjacency.ZERO_OUT)
    (0.2, 0.020000000000000004)
    """
    if any(event.sampling_rate < 1 or not event.private for event in events):
        return None, None
    gaussian = math.fsum(event.mu(adjacency) ** 2 for event in events if isinstance(event, GaussianEvent))
    pure = [event.epsilon(adjacency) for event in events if isinstance(event, SelectionEvent)]
    rho = gaussian / 2 + math.fsum(epsilon**2 for epsilon in pure) / 2
    return (None if pure else math.sqrt(gaussian)), rho
