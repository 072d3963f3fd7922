"""Data sets: a synthetic table, synthetic users of the papers' models, ratings, users formed from labelled rows."""

from tacitly.datasets.catalogues import make_ratings
from tacitly.datasets.low_rank_sparse import LowRankSparseUsers, make_low_rank_sparse
from tacitly.datasets.netflix import load_netflix
from tacitly.datasets.rating_scores import coverage, held_out, ndcg, recall, rmse
from tacitly.datasets.ratings import Ratings, load_jester, load_movielens, load_ratings
from tacitly.datasets.shards import Shards, class_shards
from tacitly.datasets.synthetic import SharedSubspace, make_shared_subspace
from tacitly.datasets.visits import load_visits

__all__ = [
    "LowRankSparseUsers",
    "Ratings",
    "Shards",
    "SharedSubspace",
    "class_shards",
    "coverage",
    "held_out",
    "load_jester",
    "load_movielens",
    "load_netflix",
    "load_ratings",
    "load_visits",
    "make_low_rank_sparse",
    "make_ratings",
    "make_shared_subspace",
    "ndcg",
    "recall",
    "rmse",
]
