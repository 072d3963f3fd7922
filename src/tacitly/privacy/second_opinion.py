"""An independent accountant: ε of a list of releases, by code that shares nothing with the main accountant.

Two independent programs that agree are stronger evidence than one. So this module imports nothing from tacitly and
reads releases as plain data, as a certificate lists them.

Sums. With a = ε/μ − μ/2, b = ε/μ + μ/2 and the Mills ratio M(x) = Φ(−x)/φ(x), the identity φ(a) = e^ε φ(b) turns the
profile of a Gaussian (Balle and Wang 2018, Theorem 8) into

    δ(ε) = φ(a)·(M(a) − M(b)),

which has no cancellation in the tail. Noise on a grid of spacing γ is within e^±η of the ideal Gaussian rounded to that
grid, η = 200·coordinates·(γ/σ)²: within 40σ, averaging a Gaussian density over one cell of the grid changes it by a
factor within e^±(40²/8·(γ/σ)²), and the mass beyond is below 10⁻³⁴⁸. Changing from one distribution to the other and
back costs 2η in ε and a factor e^η in δ. Sampled releases use the privacy-loss distributions of ``dp_accounting``,
within the range that these can represent. Beyond that range, which no calibrated noise reaches, ε is reported as ∞.

Choices. Permute-and-flip satisfies pure ε. For s choices composed with a Gaussian, δ(ε) is the mean of the Gaussian's
profile over the 2^s outcomes of randomised responses, grouped into binomials of equal ε; at negative ε the profile
follows from δ(ε) = 1 − e^ε + e^ε δ(−ε). The numeric check composes ``dp_accounting``'s distribution of a pure mechanism
instead.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import erfcx, ndtr

Array = npt.NDArray[np.float64]
ReleaseData = Mapping[str, Any]
SENSITIVITY = {"zero-out": "zero_out", "replace-one": "replace_one"}
_BEND = 40.0**2 / 8
_RATIO = math.sqrt(math.pi / 2)
_MOST_OUTCOMES = 60_000
_MOST_COMPOSED = 1e6  # beyond it the ε of choices are added
_INTERVAL = 1e-4  # of the privacy-loss grid of dp_accounting
_SAMPLED_RATIOS = (1e-9, 20.0)  # of sensitivity to noise, beside sampling: the grid grows with the square
_NO_LOSS = 1e-100  # a ratio whose inverse could not be squared
_MOST_LOSSES = 1e7  # on the grid of one sampled release
_SAMPLING_RATES = (1e-12, 1 - 1e-9)
_WIDEST = 2000.0  # privacy losses on grids, together: a stranger's certificate may list any number of releases
_MOST_STEPS = 200  # different releases that are composed numerically


def epsilon_of(releases: Sequence[ReleaseData], adjacency: str, delta: float) -> float:
    """Return ε at ``delta`` of the composition of all ``releases``.

    >>> event = {"sigma": 10.0, "sensitivity": {"zero_out": 1.0}, "sampling_rate": 1.0}
    >>> release = {"event": event, "noise": "float", "grid": 0.0, "coordinates": 3}
    >>> round(epsilon_of([release] * 4, "zero-out", 1e-5), 3)
    0.726
    """
    if not releases:
        return 0.0
    if not all(map(protected, releases)):
        return math.inf
    choices = [release for release in releases if chosen(release)]
    pure = [_pure(release, adjacency) for release in choices]
    together = sum(sorted(pure))
    releases = [release for release in releases if not chosen(release)]
    if delta == 0:
        return math.inf if releases else together
    if not releases:
        return together if together > _MOST_COMPOSED else _first_epsilon(partial(_beside, pure, 0.0), delta)
    steps = _steps(releases, adjacency)
    slack = math.fsum(map(slack_of, releases))
    full = math.hypot(*(ratio for ratio, rate in steps if rate == 1))
    sampled = [step for step in steps if step[1] < 1]
    if sampled:
        if full > _SAMPLED_RATIOS[1] or not all(map(_composable, sampled)) or _width(sampled) > _WIDEST:
            return math.inf
        losses = _loss_distribution(sampled + ([(full, 1.0)] if full else []), adjacency, _INTERVAL)
        return _first_epsilon(losses.get_delta_for_epsilon, delta * math.exp(-slack)) + 2 * slack + together
    alone = _first_epsilon(partial(gaussian_delta, full), delta * math.exp(-slack)) + 2 * slack
    if not pure or alone + together > _MOST_COMPOSED:
        return alone + together
    return _first_epsilon(partial(_beside, pure, full), delta * math.exp(-slack)) + 2 * slack


def numeric_epsilon(releases: Sequence[ReleaseData], adjacency: str, delta: float, near: float) -> float:
    """Return ε by numeric composition, on a grid of losses that is fine enough around ``near``."""
    pure = [_pure(release, adjacency) for release in releases if chosen(release)]
    releases = [release for release in releases if not chosen(release)]
    steps = _steps(releases, adjacency)
    # The discretisation error grows like steps·interval².
    interval = near / 2000 / max(1.0, math.sqrt(len(steps) / 1000), len(pure) / 10)
    if any(rate < 1 for _, rate in steps):
        interval = max(min(interval, _INTERVAL / 2), max(ratio * (ratio / 2 + 10) for ratio, _ in steps) / _MOST_LOSSES)
    slack = math.fsum(map(slack_of, releases))
    losses, added = _loss_distribution(steps, adjacency, interval), 0.0
    if any(rate < 1 for _, rate in steps):
        added = math.fsum(pure)  # as above: the ε of choices are added to that of sampled sums
    else:
        losses = _with_choices(losses, pure, interval)
    return float(losses.get_epsilon_for_delta(delta * math.exp(-slack))) + 2 * slack + added


def numerically_composable(releases: Sequence[ReleaseData], adjacency: str) -> bool:
    """Whether :func:`numeric_epsilon` ends within minutes: each release that differs from the others takes time."""
    sums = [release for release in releases if not chosen(release)]
    choices = {_pure(release, adjacency) for release in releases if chosen(release) and protected(release)}
    return len({(float(f"{ratio:.12g}"), rate) for ratio, rate in _steps(sums, adjacency)} | choices) <= _MOST_STEPS


def protected(release: ReleaseData) -> bool:
    """Whether fresh noise protects a release."""
    return release["noise"] in ("exact", "float") and noise_of(release) > 0


def chosen(release: ReleaseData) -> bool:
    """Whether a release is a choice of a candidate rather than a sum."""
    return "scale" in release["event"]


def noise_of(release: ReleaseData) -> float:
    """Noise scale of a choice, or noise standard deviation of a sum."""
    return float(release["event"]["scale" if chosen(release) else "sigma"])


def slack_of(release: ReleaseData) -> float:
    """Bound η on the log-ratio between noise on a grid and the ideal Gaussian rounded to it."""
    if chosen(release) or not protected(release):
        return 0.0
    step = release["grid"] / release["event"]["sigma"]
    return float(_BEND * release["coordinates"] * step * step)


def gaussian_delta(mu: float, epsilon: float) -> float:
    """δ at ε of a Gaussian with sensitivity ``mu`` and unit noise.

    >>> round(gaussian_delta(1.0, 1.0), 6)
    0.126937
    """
    if epsilon < 0:
        return 1 - math.exp(epsilon) * (1 - gaussian_delta(mu, -epsilon))
    if mu == 0:
        return 0.0
    a, b = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    density = math.exp(-a * a / 2) / math.sqrt(2 * math.pi) if abs(a) < 40 else 0.0
    if a < 0:
        return max(0.0, math.erfc(a / math.sqrt(2)) / 2 - density * _mills(b))
    return max(0.0, density * (_mills(a) - _mills(b)))


def _pure(release: ReleaseData, adjacency: str) -> float:
    return float(release["event"]["sensitivity"][SENSITIVITY[adjacency]] / release["event"]["scale"])


def _beside(pure: Sequence[float], mu: float, epsilon: float) -> float:
    """δ at ε of randomised responses composed with a Gaussian: a mean over the number of true responses."""
    losses, odds = _outcomes(tuple(pure))
    return float(odds @ _gaussian_deltas(mu, epsilon - losses))


@lru_cache(maxsize=8)
def _outcomes(pure: tuple[float, ...]) -> tuple[Array, Array]:
    """Losses and their probabilities, cached per profile.

    If there are too many, they are moved to a grid of losses, which can only raise δ.
    """
    losses, odds = np.zeros(1), np.ones(1)
    for each, count in sorted(Counter(pure).items(), reverse=True):
        truths = np.arange(count + 1)
        more = each * (2.0 * truths - count)
        chances = np.exp([_log_binomial(count, int(k), each) for k in truths])
        grid = np.linspace(losses.min() + more.min(), losses.max() + more.max(), _MOST_OUTCOMES + 1)
        if losses.size * more.size <= _MOST_OUTCOMES:
            losses, odds = (losses[:, None] + more).ravel(), (odds[:, None] * chances).ravel()
        else:
            total = np.zeros_like(grid)
            for far, chance in zip(more, chances, strict=True):
                total += _bundled(losses + far, odds * chance, grid)
            losses, odds = grid, total
    return losses, odds


def _bundled(losses: Array, odds: Array, grid: Array) -> Array:
    """Move outcomes to the ends of their grid cells, keeping the mass that each of the two worlds gives a cell."""
    cell = np.clip(np.searchsorted(grid, losses, side="right") - 1, 0, grid.size - 2)
    first = np.bincount(cell, odds, grid.size - 1)
    second = np.bincount(cell, odds * np.exp(grid[cell] - losses), grid.size - 1)  # over e^(-lower end)
    width = np.exp(grid[:-1] - grid[1:])
    lower = np.clip((second - first * width) / (1 - width), 0.0, first)
    divided: Array = np.append(lower, 0.0) + np.insert(first - lower, 0, 0.0)
    return divided


def _log_binomial(count: int, k: int, epsilon: float) -> float:
    """Log-probability that k of ``count`` randomised responses with this ε are true."""
    ways = math.lgamma(count + 1) - math.lgamma(k + 1) - math.lgamma(count - k + 1)
    return ways - (count - k) * epsilon - count * math.log1p(math.exp(-epsilon))


def _gaussian_deltas(mu: float, epsilon: Array) -> Array:
    """Return :func:`gaussian_delta` for an array of ε, by the scaled complementary error function."""
    size = np.abs(epsilon)
    if mu == 0:
        positive = np.zeros_like(size)
    else:
        a, b = size / mu - mu / 2, size / mu + mu / 2
        density = np.exp(-a * a / 2) / math.sqrt(2 * math.pi)
        tail = np.where(a < 0, ndtr(-a), density * _RATIO * erfcx(np.maximum(a, 0) / math.sqrt(2)))
        positive = np.maximum(0.0, tail - density * _RATIO * erfcx(b / math.sqrt(2)))
    return np.where(epsilon < 0, 1 - np.exp(-size) * (1 - positive), positive)


def _mills(x: float) -> float:
    """Φ(−x)/φ(x) for x ≥ 0: by definition near zero, else by Laplace's continued fraction."""
    if x < 4:
        return math.sqrt(math.pi / 2) * math.exp(x * x / 2) * math.erfc(x / math.sqrt(2))
    tail = 0.0
    for k in range(120, 0, -1):
        tail = k / (x + tail)
    return 1 / (x + tail)


def _first_epsilon(profile: Callable[[float], float], delta: float) -> float:
    """Smallest ε at which a decreasing profile is at most ``delta``."""
    if profile(0.0) <= delta:
        return 0.0
    low, high = 0.0, 1.0
    while profile(high) > delta:
        low, high = high, 2 * high
        if high > 1e300:
            return math.inf
    while low < (middle := (low + high) / 2) < high:
        low, high = (low, middle) if profile(middle) <= delta else (middle, high)
    return high


def _steps(releases: Iterable[ReleaseData], adjacency: str) -> list[tuple[float, float]]:
    """Ratio of sensitivity to noise, and sampling rate, of every release.

    Under sampling both neighbours are mixtures around the same centre, and only a shift by zero_out to either side of
    it dominates every pair of them. Without sampling, a release shifts by its own sensitivity.
    """
    steps = []
    for event in (release["event"] for release in releases):
        kind = adjacency if event["sampling_rate"] == 1 else "zero-out"
        steps.append((event["sensitivity"][SENSITIVITY[kind]] / event["sigma"], event["sampling_rate"]))
    return steps


def _composable(step: tuple[float, float]) -> bool:
    (least, most), (rarest, surest) = _SAMPLED_RATIOS, _SAMPLING_RATES
    return least <= step[0] <= most and rarest <= step[1] <= surest


def _width(steps: Sequence[tuple[float, float]]) -> float:
    """Range of the losses that grids must hold: of each different release, and of all together.

    The mean loss of a sampled release is at most its rate times that of a whole one; ten deviations around it.
    """
    apart = sum(ratio * (ratio / 2 + 10) for ratio, _ in set(steps))
    squares = math.fsum(rate * ratio * ratio for ratio, rate in steps)
    return apart + squares / 2 + 10 * math.sqrt(squares)


def _with_choices(losses: Any, pure: Sequence[float], interval: float) -> Any:
    from dp_accounting.pld import common, privacy_loss_distribution

    for epsilon, count in Counter(pure).items():
        parameters = common.DifferentialPrivacyParameters(epsilon, 0.0)
        step = privacy_loss_distribution.from_privacy_parameters(parameters, value_discretization_interval=interval)
        losses = losses.compose(step.self_compose(count))
    return losses


def _loss_distribution(steps: Iterable[tuple[float, float]], adjacency: str, interval: float) -> Any:
    counts = Counter((float(f"{r:.12g}"), rate) for r, rate in steps if r > _NO_LOSS)
    return _composed(tuple(counts.items()), adjacency, interval)


@lru_cache(maxsize=8)  # certificates of one account are verified one after the other, with the same runs in them
def _composed(counts: tuple[tuple[tuple[float, float], int], ...], adjacency: str, interval: float) -> Any:
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import privacy_loss_distribution as pld

    one_sided = NeighboringRelation.REPLACE_SPECIAL
    both_sided = NeighboringRelation.REPLACE_ONE
    total = pld.identity(value_discretization_interval=interval)
    for (ratio, rate), count in counts:
        two = rate < 1 and adjacency == "replace-one"
        step = pld.from_gaussian_mechanism(
            1 / ratio,
            sampling_prob=rate,
            neighboring_relation=both_sided if two else one_sided,
            value_discretization_interval=interval,
        )
        total = total.compose(step if count == 1 else step.self_compose(count))
    return total


def concentrated_of(releases: Sequence[ReleaseData], adjacency: str) -> tuple[float | None, float | None]:
    """Return μ (Gaussian DP) and ρ (zero-concentrated DP) of all ``releases``; None where there is no closed form.

    Gaussian sums of full participation: 1/μ² adds up like precisions of independent measurements, ρ = μ²/2. A choice
    of pure ε has ρ = ε²/2 and no μ.
    """
    mu_squared, rho, pure = 0.0, 0.0, False
    for release in releases:
        if not protected(release) or release["event"].get("sampling_rate", 1.0) < 1:
            return None, None
        moved = release["event"]["sensitivity"][SENSITIVITY[adjacency]]
        ratio = moved / noise_of(release)
        rho += ratio * ratio / 2  # a power would raise where this is infinite
        mu_squared += ratio * ratio
        pure = pure or chosen(release)
    return (None if pure else mu_squared**0.5), rho
