"""Classes that may travel, by name: an allow-list that the methods fill when :mod:`tacitly.methods` is imported.

:mod:`tacitly.federation.wire` builds nothing whose name is not listed here. The list names modules and imports none:
a module is loaded when one of its classes first arrives, so a node starts without a compiler. (Every process that
imports anything of tacitly imports :mod:`tacitly` first, which imports the methods' descriptions, so actors and nodes
have the same list as the program that asks them.)
"""

from __future__ import annotations

from collections.abc import Mapping

KNOWN: dict[str, str] = {"Projected": "tacitly.federation.projected"}
"""The module of each class that may travel."""


def allow(classes: Mapping[str, str]) -> None:
    """Let classes travel: the module of each, by class name. A name belongs to one module."""
    for name, module in classes.items():
        if KNOWN.setdefault(name, module) != module:
            raise ValueError(f"{name} may travel from {KNOWN[name]} already. Found another in {module}: rename one.")
