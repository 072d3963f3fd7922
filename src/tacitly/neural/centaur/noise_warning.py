"""Warn before anything is spent if noise exceeds the largest possible signal, which is public."""

from __future__ import annotations

import math
import warnings

from tacitly.privacy.guarantee import TooFewUsersWarning


class NoiseWarning(TooFewUsersWarning):
    """The planned noise is larger than the largest possible signal of all users."""


def noise_to_signal(sigma: float, parameters: int, users: float, rounds: int) -> float:
    """Return how far noise moves the body, divided by how far users who fully agree would move it.

    A round's mean has norm at most one (in clipping bounds) and noise of norm σ√p/n. Over T rounds, agreement adds up
    to T, and noise to √T times that of one round. The ratio is σ√p/(n√T); it does not depend on T for a fixed budget,
    because σ grows like √T.

    >>> round(noise_to_signal(52.76, 734_432, 500, 200), 1)
    6.4
    """
    return sigma * math.sqrt(parameters) / (users * math.sqrt(rounds))


def warn_of_noise(sigma: float, parameters: int, users: float, rounds: int) -> None:
    """Warn if noise would move the body further than all users together could."""
    ratio = noise_to_signal(sigma, parameters, users, rounds)
    if ratio <= 1.0:
        return
    few, many = max(1, int(parameters / ratio**2)), math.ceil(users * ratio)
    warnings.warn(
        f"the noise will move the body {ratio:.1f} times as far as all users could if they agreed in every round "
        f"(σ√p/(n√T): σ = {sigma:.3g}, p = {parameters:,} learned parameters, n = {users:,.0f} users, T = {rounds} "
        f"rounds), so little can be learned. What helps: at most {few:,} learned parameters (requires_grad_(False) on "
        f"the others; neural.image_network), features of a public network (neural.Features), {many:,} users, or a "
        "larger epsilon.",
        NoiseWarning,
        stacklevel=5,
    )
