"""Data sets: a made-up table, synthetic users of the papers' models, ratings, users formed from labelled rows."""

from tacitly.datasets.low_rank_sparse import LowRankSparseUsers, make_low_rank_sparse
from tacitly.datasets.ratings import Ratings, load_jester, load_movielens
from tacitly.datasets.shards import Shards, class_shards
from tacitly.datasets.synthetic import SharedSubspace, make_shared_subspace
from tacitly.datasets.visits import load_visits

__all__ = [
    "LowRankSparseUsers",
    "Ratings",
    "Shards",
    "SharedSubspace",
    "class_shards",
    "load_jester",
    "load_movielens",
    "load_visits",
    "make_low_rank_sparse",
    "make_shared_subspace",
]
