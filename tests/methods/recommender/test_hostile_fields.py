"""Public numbers that somebody else wrote: compiled loops use places as positions, and squares of gains."""

from __future__ import annotations

import numpy as np
import pytest

from tacitly.methods.recommender.choices import ChoiceMoments
from tacitly.methods.recommender.posterior import Catalogue, WeightPrior
from tacitly.methods.recommender.queries import ItemSums, PairMoments

ITEMS = 6
CATALOGUE = Catalogue(np.ones((ITEMS, 1)), np.zeros(ITEMS), 1.0, 5.0)
PRIOR = WeightPrior(np.zeros(1), np.eye(1), 1.0)


@pytest.mark.parametrize("other", [-0.5, -1e-9, np.nan, -2.0, np.inf])
def test_no_two_items_share_a_place_by_rounding(other: float) -> None:
    """-0.5 becomes 0: who rated more items than there are places would write beyond the end of an array."""
    place = np.array([0.0, 1.0, other, other, other, other])
    with pytest.raises(ValueError, match="whole numbers"):
        PairMoments(CATALOGUE, PRIOR, place, 1.0)
    with pytest.raises(ValueError, match="whole numbers"):
        ChoiceMoments(CATALOGUE, place, np.ones(2))


@pytest.mark.parametrize("gain", [1e-170, 2.7e-162, 1e-80, 1e80, 1e160, np.inf])
def test_gains_keep_the_bound_or_are_refused(gain: float) -> None:
    """At 2.7e-162 the square of a gain loses all but one digit; synthetic users rate the first two items only."""
    try:
        query = ItemSums(CATALOGUE, PRIOR, np.array([1.0, 1.0, gain, gain, gain, gain]), 1.0, True)
    except ValueError:
        return
    rows, ratings = np.array([[2.0], [3.0]]), np.array([5.0, 1.0])
    for rated in (1, 2):
        moved = query.block_sum(rows[:rated], ratings[:rated], np.array([0, rated]), 0.1)
        assert np.linalg.norm(moved) <= 0.1


def test_shares_of_popularity_are_finite() -> None:
    with pytest.raises(ValueError, match="finite"):
        ChoiceMoments(CATALOGUE, np.array([0.0, 1.0, 2.0, -1.0, -1.0, -1.0]), np.array([np.inf, 1.0, 1.0]))
