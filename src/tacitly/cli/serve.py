"""Coordinate sites that keep their rows locally."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Annotated, Any

import click
import typer

from tacitly.cli.console import Delta, Neighbours, Out, adjacency_of, method_option, say, show_certificate
from tacitly.cli.method_options import Chosen, MethodCommand
from tacitly.methods import REGISTRY
from tacitly.methods.registry import REQUIRED

_SILENT = 8.0  # seconds: a site that does not compute asks for work at least every four
_NOT_SETTINGS = ("folder", "status", "as_json", "page")


class ServeCommand(MethodCommand):
    """``serve``: no option is required if the call resumes a folder's run."""

    insists = False


def serve(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(help="The coordinator's folder; created if new.", show_default=False)],
    node: Annotated[
        list[Path] | None, typer.Option(help="A site's card.json; repeat for each site (first call only).")
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="Privacy budget (first call only).")] = None,
    server: Annotated[str, typer.Option(help="Address that sites can reach.")] = "127.0.0.1:8600",
    out: Out = Path("model"),
    delta: Delta = None,
    adjacency: Neighbours = "zero-out",
    method: Annotated[str, method_option("serve")] = REGISTRY.default("serve").name,
    options: Annotated[
        list[str] | None, typer.Option("--set", help="Any other parameter of the method, as name=value; repeatable.")
    ] = None,
    trust: Annotated[str, typer.Option(help="central, node or secure: who adds the noise.")] = "central",
    colluding: Annotated[int, typer.Option(help="Number of nodes that may collude with the coordinator (secure).")] = 1,
    deadline: Annotated[float, typer.Option(help="Seconds to wait for answers in a round.")] = 60.0,
    status: Annotated[bool, typer.Option("--status", help="Show the status and exit.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Show the status as JSON and exit.")] = False,
    page: Annotated[int | None, typer.Option(help="Port of a live status page, on this machine only.")] = None,
) -> None:
    """Coordinate a fit across sites that keep their rows; run again to resume."""
    from tacitly.deployment.settings import Settings

    if status or as_json:
        from tacitly.deployment.serve import current_status

        now = current_status(folder)
        if as_json:
            say(json.dumps(now))
        else:
            _show(now)
        return
    from tacitly.deployment import serve as coordinator

    if (folder / "settings.json").exists():
        _refuse_settings(context, folder)
    else:
        chosen = Chosen.of(context)
        cards = _cards(folder, chosen, node, epsilon)
        settings = Settings(
            server=server,
            out=str(out.absolute()),
            epsilon=float(epsilon or 0.0),
            delta=chosen.method.delta if delta is None else delta,
            adjacency=str(adjacency_of(adjacency)),
            method=method,
            options={**chosen.given, **dict(_parameter(text) for text in options or ())},
            trust=trust,
            colluding=colluding,
            patience={"deadline": deadline},
            cards=cards,
        )
        coordinator.prepare(folder, settings)
        say(f"give {folder / 'invitation.json'} to every site (it is public)")
    _run(folder, page)


def _cards(folder: Path, chosen: Chosen, nodes: list[Path] | None, epsilon: float | None) -> tuple[Any, ...]:
    """Return the sites' cards; raise if an option is missing that a new folder needs."""
    from tacitly.federation.flower.card import Card

    needed = [option for option in chosen.method.options if option.default is REQUIRED]
    if not nodes or epsilon is None or any(option.name not in chosen.given for option in needed):
        flags = ", ".join([*(option.spelling for option in needed), "--epsilon"])
        raise ValueError(f"{folder} is new: give {flags} and a --node card.json for every site.")
    return tuple(Card.from_json(path.read_text("utf-8")) for path in nodes)


def _run(folder: Path, page: int | None) -> None:
    """Run the coordinator until the model is saved; show its certificate, what was learned, and missing sites."""
    from tacitly.cli.console import show_summary, wrapped
    from tacitly.deployment import serve as coordinator
    from tacitly.deployment.page import page as status_page
    from tacitly.deployment.settings import Settings, Status
    from tacitly.model_folder import load
    from tacitly.privacy.certificate import Certificate

    shown = status_page(folder, page) if page is not None else contextlib.nullcontext("")
    with shown as address:
        if address:
            say(f"status: {address}")
        done = coordinator.serve(folder, say)
    if not done:
        raise ValueError("the run could not be finished. Run the same command again to resume; nothing is spent twice.")
    settings = Settings.load(folder)
    show_certificate(Certificate.from_json((Path(settings.out) / "certificate.json").read_text("utf-8")))
    show_summary(load(settings.out))
    if silent := _silent(Status(folder).read()):
        say(wrapped(f"note: {silent} did not answer at the end: users there add nothing to sums without them."))
    say(f"model: {settings.out}/ (contains no heads: these are at the sites)")


def _refuse_settings(context: typer.Context, folder: Path) -> None:
    """Raise if settings are given for a folder that already has settings: they would be ignored silently."""
    chosen = Chosen.of(context)
    flags = [parameter for parameter in context.command.params if parameter.name not in _NOT_SETTINGS]
    given = [parameter.opts[0] for parameter in flags if _on_command_line(context, parameter)]
    given += [option.spelling for option in chosen.method.options if option.name in chosen.given]
    if given:
        raise ValueError(
            f"{folder} already has its settings, which cannot be changed: {', '.join(given)} would have no effect. "
            f"Run tacitly serve {folder} to resume, or choose another folder."
        )


def _on_command_line(context: typer.Context, parameter: click.Parameter) -> bool:
    source = context.get_parameter_source(str(parameter.name))
    return source is not None and source.name == "COMMANDLINE"


def _parameter(text: str) -> tuple[str, Any]:
    """Read name=value: the value as JSON if it is valid JSON, else as text."""
    name, given, value = text.partition("=")
    if not given or not name.isidentifier():
        raise ValueError(f"--set must be name=value. Found {text!r}.")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _show(status: dict[str, Any]) -> None:
    """Print the available parts of the status in words."""
    from rich.console import Console
    from rich.table import Table as Grid

    grid = Grid("", "", show_header=False, box=None)
    for name, value in in_words(status).items():
        grid.add_row(name, value)
    Console().print(grid)


def _silent(status: dict[str, Any]) -> str:
    return ", ".join(status.get("last_round", {}).get("silent", ()))


def in_words(status: dict[str, Any]) -> dict[str, str]:
    """Return a status in words.

    >>> in_words({"state": "running", "releases": 3, "planned": 5, "sites": {"north": "here", "south": "not here"}})
    {'state': 'running', 'sites': 'north: here; south: not here', 'releases': '3 of 5'}
    >>> in_words({"state": "running", "sites": {"north": "here"}, "heard": {"north": 31.4}})["sites"]
    'north: last heard 31 s ago'
    """
    from tacitly.deployment.settings import seconds_left

    left, total = seconds_left(status), status.get("epsilon")
    told = {
        "state": status["state"],
        "sites": "; ".join(
            f"{name}: {_where(where, status.get('heard', {}).get(name))}"
            for name, where in status.get("sites", {}).items()
        ),
        "users": status.get("users"),
        "releases": _of(status.get("releases"), status.get("planned")),
        "time left": None if left is None else f"about {left / 60:.0f} minutes" if left > 90 else f"about {left:.0f} s",
        "ε spent": None if status.get("spent") is None else _of(f"{status['spent']:.3g}", total),
        "not counted": "; ".join(status.get("not_counted", ())),
        "nodes": status.get("nodes"),
        "silent": _silent(status),
        "last error": status.get("last_error"),
    }
    return {name: str(value) for name, value in told.items() if value not in (None, "")}


def _where(where: str, age: float | None) -> str:
    """Return whether a site is here; if it was silent for longer than a site that is here is, since when."""
    if age is None or age <= _SILENT:
        return where
    ago = f"{age:.0f} s" if age < 100 else f"{age / 60:.0f} min"
    return f"last heard {ago} ago" if where == "here" else f"{where} (last heard {ago} ago)"


def _of(done: Any, total: Any) -> str | None:
    return None if done is None else str(done) if total is None else f"{done} of {total}"
