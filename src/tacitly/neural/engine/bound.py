"""The clipping bound of users' updates: none to choose, a number, or a typical norm released privately."""

from __future__ import annotations

from tacitly.federation.base import Federation
from tacitly.methods.shared.typical_norm import typical_norm
from tacitly.neural.engine.query import BodyUpdate
from tacitly.privacy.calibration import Plan

_REACH, _SURE = 30.0, 10.0  # range of norms searched, in octaves around one; a norm is found within one octave or not


def update_bound(federation: Federation, plan: Plan, clip: float | str | None, query: BodyUpdate, name: str) -> float:
    """Return the clipping bound of the rounds: 1 for updates of norm one (None), the number, or a typical norm.

    The typical norm (``"auto"``) is one release, ``name``, paid from the plan's phase ``"clip"``. If noise hides it,
    the bound is tiny: all updates are clipped to the same norm, or hardly move the network. A bound that is far too
    large would mean far too much noise.
    """
    if clip == "auto":
        event = plan.event("clip", clip=1.0)
        typical = typical_norm(federation, query, event, name, reach=_REACH, sure=_SURE)
        return typical.size if typical.found else 2.0**-_REACH
    return 1.0 if clip is None else float(clip)
