"""Data sets: the papers' synthetic families, made on the spot, and users made from labelled rows."""

from tacit.datasets.shards import Shards, class_shards
from tacit.datasets.synthetic import SharedSubspace, make_shared_subspace

__all__ = ["Shards", "SharedSubspace", "class_shards", "make_shared_subspace"]
