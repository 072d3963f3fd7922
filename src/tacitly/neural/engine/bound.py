"""The bound on users' updates: none to choose, a number, or a median released privately."""

from __future__ import annotations

from tacitly.federation.base import Federation
from tacitly.methods.shared.norm_histogram import private_clip
from tacitly.neural.engine.query import BodyUpdate
from tacitly.privacy.calibration import Plan


def update_bound(federation: Federation, plan: Plan, clip: float | str | None, query: BodyUpdate, name: str) -> float:
    """Return the clip of the rounds: 1 for updates of norm one (None), the number, or the median norm (``"auto"``).

    The median is one release, ``name``, paid from the plan's phase ``"clip"``.
    """
    if clip == "auto":
        return private_clip(federation, query, plan.event("clip", clip=1.0, acute=True), name)
    return 1.0 if clip is None else float(clip)
