"""The queries that have a device form: exactly these classes, because a subclass may compute something else.

A form is made from a query's public fields and maps a span of users to block sums in float64. Queries are identified
here by name, because this package must not import the methods.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import torch

from tacitly.federation.base import Query
from tacitly.federation.cuda.sums import BlockSums
from tacitly.federation.statistics import same

_FOLDER, _METHODS = "tacitly.federation.cuda", "tacitly.methods"

FORMS: dict[str, str] = {
    "fedrep.queries.BasisStep": "basis_step:basis_step",
    "fedrep.queries.LossStep": "loss_step:loss_step",
    "shared.whitening.FeatureMoment": "start:feature_moment",
    "shared.whitening.ScaledMoment": "start:feature_moment",
    "shared.direction_votes.DirectionVote": "start:direction_vote",
    "shared.direction_votes.ClassVote": "start:class_vote",
    "shared.column_scales.ColumnScales": "contributions:column_scales",
    "shared.central.CentralStep": "contributions:central_step",
    "shared.typical_norm.TypicalNorm": "contributions:typical_norm",
    "mixed_effects.unit_queries.Magnitudes": "contributions:magnitudes",
    "mixed_effects.unit_queries.Angles": "contributions:angles",
    "mixed_effects.unit_queries.Shares": "contributions:shares",
    "mixed_effects.queries.Information": "posteriors:information",
    "mixed_effects.queries.InformationShares": "posteriors:information_shares",
    "mixed_effects.queries.MeasuredScore": "posteriors:measured_score",
    "mixed_effects.variance_queries.LogVariances": "posteriors:log_variances",
    "mixed_effects.variance_queries.Variances": "posteriors:variances",
    "mixed_effects.variance_queries.MeasuredSpread": "posteriors:measured_spread",
    "mixed_effects.advantage.Advantage": "posteriors:coverage",
    "fedpower.gram.CentreVote": "rows_as_units:centre_vote",
    "fedpower.gram.ShiftedGram": "rows_as_units:shifted_gram",
    "fedpower.power.PowerStep": "rows_as_units:power_step",
    "shared.norm_histogram.NormHistogram": "rows_as_units:norm_histogram",
    "low_rank_sparse.queries.SparseStep": "sparse_step:sparse_step",
}
"""The function that makes the form, by the query's class."""

NORMS: dict[str, str] = {
    "shared.central.Correction": "contributions:correction_norms",
    "low_rank_sparse.queries.SparseStep": "sparse_step:sparse_norms",
    "mixed_effects.variance_queries.WithinVariance": "contributions:within_norms",
    "mixed_effects.queries.Information": "posteriors:information_norms",
    "mixed_effects.queries.Score": "posteriors:score_norms",
    "mixed_effects.variance_queries.Spread": "posteriors:spread_norms",
}
"""The function that makes the form of a query's norms, for ``TypicalNorm``."""


@dataclass
class Context:
    """Where forms run, whether in plain PyTorch, and what they keep there between releases.

    What is kept is private like the rows and never leaves the device.
    """

    device: torch.device
    plain: bool
    n_users: float
    room: float = field(init=False)
    """Bytes that one kind of what is kept may take."""
    kept: dict[str, tuple[Any, dict[tuple[int, int], torch.Tensor]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        on_host = self.device.type == "cpu"
        self.room = 2.0**31 if on_host else 0.15 * torch.cuda.get_device_properties(self.device).total_memory

    def keeping_nothing(self) -> Context:
        """Return a context for other users than these, which must not find what is kept of them."""
        return Context(self.device, self.plain, math.inf)

    def keep(self, name: str, key: Any, place: tuple[int, int], make: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Return what is kept for the users of a span; made anew where the public ``key`` changed."""
        known = self.kept.get(name)
        if known is None or not same(known[0], key):
            known = self.kept[name] = (key, {})
        if place not in known[1]:
            known[1][place] = make()
        return known[1][place]


def form_of(query: Query, context: Context) -> BlockSums | None:
    """Return the device form of a query, None where it has none."""
    made: BlockSums | None = _made(FORMS, query, context)
    return made


def norms_form_of(query: Query, context: Context) -> Any:
    """Return the device form of a query's norms, None where it has none."""
    return _made(NORMS, query, context)


def _made(known: dict[str, str], query: Query, context: Context) -> Any:
    kind = type(query)
    name = known.get(f"{kind.__module__}.{kind.__name__}".removeprefix(f"{_METHODS}."))
    if name is None:
        return None
    module, _, function = name.partition(":")
    return getattr(import_module(f"{_FOLDER}.{module}"), function)(query, context)
