"""The reference pages: classes and functions from their docstrings, commands from their own help.

The lists come from the facade (``tacitly.__all__``), the registry of methods and the command itself, so that nothing
that is public is missing and nothing else is there.
"""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any

GROUPS = {
    "methods": ("Methods", "Estimators, in scikit-learn's manner: `fit`, `predict`, attributes that end in `_`."),
    "networks": ("Networks", "What `tacitly.neural` adds; needs `pip install tacitly[neural]`."),
    "models": ("Models and choices", "Saving, loading, predicting with little installed, choosing privately."),
    "privacy": ("Budgets, accounts, certificates", "What a run may spend, what it spent, and what it claims."),
    "data": ("Data", "Cohorts, folds, data sets."),
    "baselines": ("To compare with", "What users would have without privacy, or alone."),
    "audit": ("The auditor", "Attacks that try to refute a claim."),
}
_PRIVACY = ("Budget", "Ledger", "BudgetExceeded", "Certificate", "UncertifiedWarning", "LargeDeltaWarning")
_DATA = ("Cohort", "WithinUsers", "DataError")


def members() -> dict[str, list[str]]:
    """Return the full names of what each group of the reference documents."""
    import tacitly
    from tacitly.methods import REGISTRY

    methods = [f"{home}.{name}" for m in REGISTRY.values() if not m.network for name, home in m.homes.items()]
    networks = [f"{home}.{name}" for m in REGISTRY.values() if m.network for name, home in m.homes.items()]
    found: dict[str, list[str]] = {group: [] for group in GROUPS}
    found["methods"] = methods
    found["networks"] = list(dict.fromkeys([*networks, *exported("tacitly.neural")]))
    for name, home in sorted(tacitly._HOMES.items()):
        full = f"{home}.{name}"
        if full in methods:
            continue
        place = "baselines" if home.startswith("tacitly.baselines.") else "models"
        place = "privacy" if name in _PRIVACY else "data" if name in _DATA else place
        found[place].append(defined(full))
    found["data"] += exported("tacitly.datasets")
    found["audit"] += exported("tacitly.audit")
    return found


def exported(package: str) -> list[str]:
    """Return where each public name of a package is defined."""
    module = importlib.import_module(package)
    return [defined(f"{package}.{name}") for name in module.__all__]


def defined(full: str) -> str:
    """Return the name of a class or function in the module that defines it."""
    home, _, name = full.rpartition(".")
    thing = getattr(importlib.import_module(home), name)
    return f"{getattr(thing, '__module__', home)}.{name}"


def pages() -> dict[str, str]:
    """Return the reference: one page per group, and one for the commands."""
    found, made = members(), {}
    rows = ["| page | what is there |", "|---|---|"]
    for group, (title, about) in GROUPS.items():
        parts = [f"# {title}", about, *(f"::: {name}" for name in found[group])]
        made[f"reference/{group}.md"] = "\n\n".join(parts) + "\n"
        short = ", ".join(f"`{name.rpartition('.')[2]}`" for name in found[group])
        rows.append(f"| [{title}](reference/{group}.md) | {short} |")
    rows.append("| [Commands](commands.md) | `tacitly` on the command line |")
    about = "Everything that can be imported from `tacitly`, from the docstrings of this version."
    made["api.md"] = "\n\n".join(["# Python reference", about, "\n".join(rows)]) + "\n"
    made["commands.md"] = commands()
    return made


def commands() -> str:
    """Return the page of the command: every command with its arguments and options."""
    import typer.main

    from tacitly.cli.main import app, main

    group: Any = typer.main.get_command(app)
    codes = inspect.getdoc(inspect.getmodule(main)) or ""
    parts = ["# Commands", "`tacitly COMMAND --help` shows the same at the console.", codes.partition("\n\n")[2]]
    for name, command in _walk(group, "tacitly"):
        parts += [f"## {name}", _text(command.help or ""), *_tables(command)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _walk(group: Any, prefix: str) -> list[tuple[str, Any]]:
    found = []
    for name, command in group.commands.items():
        inner = getattr(command, "commands", None)
        found += _walk(command, f"{prefix} {name}") if inner else [(f"{prefix} {name}", command)]
    return found


def _tables(command: Any) -> list[str]:
    import click

    rows = []
    for parameter in command.get_params(click.Context(command)):
        if "--help" in parameter.opts or getattr(parameter, "hidden", False):
            continue
        argument = parameter.param_type_name == "argument"
        names = (parameter.metavar or parameter.name).upper() if argument else ", ".join(parameter.opts)
        rows.append(f"| `{names}` | {_text(getattr(parameter, 'help', None) or '')} |")
    return ["\n".join(["| option | meaning |", "|---|---|", *rows])] if rows else []


def _text(words: str) -> str:
    return re.sub(r"\s+", " ", words.replace("\b", "").replace("|", "\\|")).replace("<", "&lt;").strip()
