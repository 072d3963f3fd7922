"""The bound on users' updates: none to choose, a number, or a typical norm released privately."""

from __future__ import annotations

from tacitly.federation.base import Federation
from tacitly.methods.shared.typical_norm import typical_norm
from tacitly.neural.engine.query import BodyUpdate
from tacitly.privacy.calibration import Plan

_REACH, _SURE = 30.0, 10.0  # octaves around one in which norms are looked for; a norm is known to one, or not at all


def update_bound(federation: Federation, plan: Plan, clip: float | str | None, query: BodyUpdate, name: str) -> float:
    """Return the clip of the rounds: 1 for updates of norm one (None), the number, or a typical norm (``"auto"``).

    The last is one release, ``name``, paid from the plan's phase ``"clip"``. Where noise hides it the clip is tiny: all
    updates count alike, as those of norm one do, or move the network hardly at all. One far too large would drown them.
    """
    if clip == "auto":
        event = plan.event("clip", clip=1.0)
        typical = typical_norm(federation, query, event, name, reach=_REACH, sure=_SURE)
        return typical.size if typical.found else 2.0**-_REACH
    return 1.0 if clip is None else float(clip)
