"""Warn before anything is spent: noise against the largest possible signal, which is public."""

from __future__ import annotations

import math
import warnings

from tacitly.privacy.guarantee import TooFewUsersWarning


class NoiseWarning(TooFewUsersWarning):
    """The planned noise is larger than anything users can say."""


def noise_to_signal(sigma: float, parameters: int, users: float, rounds: int) -> float:
    """Return how far noise moves the body, divided by how far users who agree in everything would move it.

    A round's mean has norm at most one (in clips) and noise of norm σ√p/n. Over T rounds agreement adds up to T, noise
    to √T times one round's: σ√p/(n√T), which does not depend on T at a fixed budget, as σ grows like √T.

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
