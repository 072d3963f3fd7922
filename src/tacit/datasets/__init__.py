"""Data to try things on: the papers' synthetic families."""

from tacit.datasets.low_rank_sparse import LowRankSparseUsers, make_low_rank_sparse
from tacit.datasets.ratings import Ratings, load_jester, load_movielens
from tacit.datasets.synthetic import SharedSubspace, make_shared_subspace

__all__ = [
    "LowRankSparseUsers",
    "Ratings",
    "SharedSubspace",
    "load_jester",
    "load_movielens",
    "make_low_rank_sparse",
    "make_shared_subspace",
]
