"""The check that refuses engines for networks of custom modules, and says what to use instead."""

from __future__ import annotations

from typing import Any


def check_engine(engine: Any) -> None:
    """Raise unless the users are in this process.

    Only data, a name and numbers, is sent to a Ray actor or to a site (:mod:`tacitly.federation.wire`), so that no
    answer can depend on code that the receiver has not reviewed. A module is code.
    """
    if engine is None:
        return
    name = engine if isinstance(engine, str) else type(engine).__name__
    raise ValueError(
        f"networks run in one process, on its GPU if there is one (device='auto'). Found engine {name}: a module is "
        "code, and only data is sent to other processes. Use neural.TableNetwork, which is sent as numbers, or "
        "compute neural.Features(encoder) where the rows are, and fit MixedEffects or PrivateFedRep to them on any "
        "engine."
    )
