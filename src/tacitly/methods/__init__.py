"""The methods, one folder each."""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "Centaur": "centaur",
    "FedPower": "fedpower",
    "LowRankSparse": "low_rank_sparse",
    "MarginClassifier": "margin",
    "PrivateAltMin": "altmin",
    "PrivateFedRep": "fedrep",
    "TraceRegression": "trace_regression",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"tacitly.methods.{_HOMES[name]}.estimator"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
