"""The estimators a user sees, one file each; :mod:`tacit.estimators.base` is what they have in common."""

from tacit.estimators.altmin import PrivateAltMin
from tacit.estimators.centaur import Centaur
from tacit.estimators.fedpower import FedPower
from tacit.estimators.fedrep import PrivateFedRep
from tacit.estimators.low_rank_sparse import LowRankSparse
from tacit.estimators.margin import MarginClassifier
from tacit.estimators.trace_regression import TraceRegression

__all__ = [
    "Centaur",
    "FedPower",
    "LowRankSparse",
    "MarginClassifier",
    "PrivateAltMin",
    "PrivateFedRep",
    "TraceRegression",
]
