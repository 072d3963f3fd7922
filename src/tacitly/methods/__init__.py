"""The methods, one folder each, and :data:`REGISTRY`, which finds them.

Importing this package imports every method's description and no estimator; it also tells
:mod:`tacitly.federation.allowed` which classes may travel.

>>> from tacitly.methods import REGISTRY
>>> REGISTRY["fedrep"].class_name, REGISTRY.default("fit").name
('PrivateFedRep', 'mixed-effects')
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from tacitly import heads
from tacitly.federation.allowed import allow
from tacitly.methods import shared
from tacitly.methods.registry import NETWORKS, Registry, discover, homes

REGISTRY: Registry = discover(__name__, NETWORKS)
"""Every method, by its command name."""

allow(homes(heads.__name__, *heads.WIRE))
allow(homes(shared.__name__, *shared.WIRE))
for _method in REGISTRY.values():
    allow(homes(_method.package, *_method.wire))

_HOMES = {name: home for m in REGISTRY.values() if not m.network for name, home in m.homes.items()}
__all__ = ["REGISTRY", *_HOMES]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
