"""The allow-list of classes that may be sent in messages; methods fill it when :mod:`tacitly.methods` is imported.

:mod:`tacitly.federation.wire` builds no object whose class is not listed here. The list contains names of modules and
imports none of them: a module is loaded when a message first names one of its classes, so a node starts without a
compiler. (Every process that imports a part of tacitly imports :mod:`tacitly` first, which imports the methods'
descriptions, so actors and nodes have the same list as the program that queries them.)
"""

from __future__ import annotations

from collections.abc import Mapping

KNOWN: dict[str, str] = {"Projected": "tacitly.federation.projected"}
"""The module of each class that may travel."""


def allow(classes: Mapping[str, str]) -> None:
    """Add classes to the allow-list: the module of each, by class name. A class name belongs to one module."""
    for name, module in classes.items():
        if KNOWN.setdefault(name, module) != module:
            raise ValueError(f"{name} may travel from {KNOWN[name]} already. Found another in {module}: rename one.")
