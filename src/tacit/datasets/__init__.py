"""Data to try things on: the papers' synthetic families."""

from tacit.datasets.synthetic import SharedSubspace, make_shared_subspace

__all__ = ["SharedSubspace", "make_shared_subspace"]
