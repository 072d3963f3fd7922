"""Learn where the rows are: a coordinator that sees none of them, and the sites that hold them."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from tacitly.cli.console import say


def serve(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(help="The coordinator's folder; made if new.", show_default=False)],
    node: Annotated[list[Path] | None, typer.Option(help="A site's card.json, one each; first call.")] = None,
    rank: Annotated[int | None, typer.Option(help="Number of shared directions; on the first call.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="Privacy budget; on the first call.")] = None,
    server: Annotated[str, typer.Option(help="Address that sites can reach.")] = "127.0.0.1:8600",
    out: Annotated[Path, typer.Option(help="Where to write the model folder.")] = Path("model"),
    delta: Annotated[float, typer.Option(help="Probability with which epsilon may fail.")] = 1e-6,
    adjacency: Annotated[str, typer.Option(help="zero-out or replace-one.")] = "zero-out",
    method: Annotated[str, typer.Option(help="fedrep, altmin, low-rank-sparse, margin, trace or svd.")] = "fedrep",
    rounds: Annotated[int | None, typer.Option(help="Noisy steps; default: the method's own.")] = None,
    options: Annotated[
        list[str] | None, typer.Option("--set", help="A parameter of the method, as name=value; several times.")
    ] = None,
    trust: Annotated[str, typer.Option(help="central, node or secure: who adds the noise.")] = "central",
    colluding: Annotated[int, typer.Option(help="Nodes that may help a curious coordinator (secure).")] = 1,
    deadline: Annotated[float, typer.Option(help="Seconds to wait for answers in a round.")] = 60.0,
    status: Annotated[bool, typer.Option("--status", help="Show how it is doing, and nothing else.")] = False,
    page: Annotated[int | None, typer.Option(help="Port of a page on this machine that shows it live.")] = None,
) -> None:
    """Coordinate sites that keep their rows; run again to go on where it was."""
    from tacitly.deployment.settings import Settings, Status

    if status:
        _show(Status(folder).read())
        return
    from tacitly.deployment import serve as coordinator
    from tacitly.deployment.page import page as status_page
    from tacitly.federation.flower.node import Card
    from tacitly.privacy.certificate import Certificate

    if (folder / "settings.json").exists():
        _refuse_settings(context, folder)
    else:
        if not node or rank is None or epsilon is None:
            raise ValueError(f"{folder} is new: give --rank, --epsilon and a --node card.json for every site.")
        cards = tuple(Card.from_json(path.read_text("utf-8")) for path in node)
        settings = Settings(
            server=server,
            out=str(out.absolute()),
            rank=rank,
            epsilon=epsilon,
            delta=delta,
            adjacency=adjacency,
            method=method,
            rounds=rounds,
            options=dict(_parameter(text) for text in options or ()),
            trust=trust,
            colluding=colluding,
            patience={"deadline": deadline},
            cards=cards,
        )
        coordinator.prepare(folder, settings)
        say(f"give {folder / 'invitation.json'} to every site (it is public)")
    shown = status_page(folder, page) if page is not None else contextlib.nullcontext("")
    with shown as address:
        if address:
            say(f"status: {address}")
        done = coordinator.serve(folder, say)
    if not done:
        raise ValueError("the run could not be finished. Run the same command again to go on; nothing is spent twice.")
    settings = Settings.load(folder)
    say(str(Certificate.from_json((Path(settings.out) / "certificate.json").read_text("utf-8"))))
    say(f"model: {settings.out}/ (no heads in it: they are with the sites)")


def join(
    folder: Annotated[Path, typer.Argument(help="The site's folder; made from --table first.", show_default=False)],
    invitation: Annotated[Path | None, typer.Option(help="The coordinator's invitation.json.")] = None,
    table: Annotated[Path | None, typer.Option(help="Rows of this site's users, to make the folder from.")] = None,
    user: Annotated[str | None, typer.Option(help="Column with the user id.")] = None,
    target: Annotated[str | None, typer.Option(help="Column to predict.")] = None,
    name: Annotated[str | None, typer.Option(help="What the site is called in the federation.")] = None,
    tell_rows: Annotated[bool, typer.Option("--tell-rows", help="Say how many rows there are: unit row.")] = False,
    epsilon: Annotated[
        float | None, typer.Option(help="This site's own ceiling, for all runs together; set once.")
    ] = None,
    delta: Annotated[float, typer.Option(help="Probability with which that ceiling may fail.")] = 1e-6,
    trust: Annotated[
        str | None, typer.Option(help="central, node or secure: join only if the invitation says the same.")
    ] = None,
    patience: Annotated[float, typer.Option(help="Seconds to try if the coordinator does not know this site.")] = 60.0,
    personalize_only: Annotated[Path | None, typer.Option(help="A published model: fit heads here, offline.")] = None,
) -> None:
    """Join a federation with this site's users: their rows and heads never leave this folder."""
    from tacitly.deployment import join as site
    from tacitly.privacy.guarantee import Adjacency, Budget

    if not (folder / "card.json").exists():
        if table is None or user is None:
            raise ValueError(f"{folder} is new: give --table, --user, --target and --name.")
        from tacitly.data.cohort import Cohort

        cohort = Cohort.from_table(table, user=user, target=target)
        card = site.prepare(folder, name or folder.name, cohort, tell_rows=tell_rows)
        say(f"{card.users} users; give {folder / 'card.json'} to the coordinator (it is public)")
    if personalize_only is not None:
        from tacitly.cli.console import with_heads

        say(f"heads: {site.personalize(folder, with_heads(personalize_only))} (private)")
    elif invitation is not None:
        told = json.loads(invitation.read_text("utf-8"))
        own = None if epsilon is None else Budget(epsilon=epsilon, delta=delta, adjacency=Adjacency(told["adjacency"]))
        site.join(folder, told, say, ceiling=own, trust=trust, patience=patience)


def _refuse_settings(context: typer.Context, folder: Path) -> None:
    """Raise if a folder that has its settings is given others: they would do nothing, and look as if they did."""
    own = ("folder", "status", "page")
    sources = {name: context.get_parameter_source(name) for name in context.params if name not in own}
    given = [f"--{name}" for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
    if given:
        given = ["--set" if name == "--options" else name for name in given]
        raise ValueError(
            f"{folder} was made with settings of its own, which stand; {', '.join(given)} would change nothing. "
            f"Run tacitly serve {folder} to go on, or choose another folder."
        )


def _parameter(text: str) -> tuple[str, Any]:
    """Read name=value, the value as JSON if it is any, else as text."""
    name, given, value = text.partition("=")
    if not given or not name.isidentifier():
        raise ValueError(f"--set must be name=value. Found {text!r}.")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _show(told: dict[str, object]) -> None:
    from rich.console import Console
    from rich.table import Table as Grid

    grid = Grid("", "", show_header=False)
    for key, value in told.items():
        grid.add_row(key.replace("_", " "), json.dumps(value) if isinstance(value, dict) else str(value))
    Console().print(grid)
