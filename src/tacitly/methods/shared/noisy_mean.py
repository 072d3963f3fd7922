"""The noisy mean of a query over users, with its noise."""

from __future__ import annotations

from tacitly.arrays import Array
from tacitly.federation.base import Federation, Query
from tacitly.privacy.guarantee import GaussianEvent


def noisy_mean(federation: Federation, query: Query, event: GaussianEvent, name: str) -> tuple[Array, float]:
    """Release a sum; return it per user who is expected to take part, and the noise of each coordinate.

    The number of users and the sampling rate are public, so dividing by them is post-processing.
    """
    n = event.sampling_rate * federation.n_users
    return federation.release(query, event, name) / n, federation.sum_sigma(event) / n
