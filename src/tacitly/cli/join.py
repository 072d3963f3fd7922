"""Join a federation with a site's users."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from tacitly.cli import reading
from tacitly.cli.accounts import charged
from tacitly.cli.console import LedgerFile, say


def join(
    folder: Annotated[Path, typer.Argument(help="The site's folder; created from --table.", show_default=False)],
    invitation: Annotated[Path | None, typer.Option(help="The coordinator's invitation.json.")] = None,
    table: Annotated[Path | None, typer.Option(help="Table with the rows of this site's users.")] = None,
    user: Annotated[str | None, typer.Option(help="Column with the user id.")] = None,
    target: Annotated[str | None, typer.Option(help="Column to predict.")] = None,
    exclude: reading.Exclude = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the site in the federation; default: its folder's name.")
    ] = None,
    tell_rows: Annotated[bool, typer.Option("--tell-rows", help="Publish the number of rows (for unit row).")] = False,
    epsilon: Annotated[
        float | None, typer.Option(help="This site's own ceiling for all its runs together; set once.")
    ] = None,
    delta: Annotated[float, typer.Option(help="Probability with which that ceiling may fail.")] = 1e-6,
    trust: Annotated[
        str | None, typer.Option(help="central, node or secure: join only if the invitation states the same.")
    ] = None,
    patience: Annotated[
        float, typer.Option(help="Seconds to keep trying if the coordinator does not know this site.")
    ] = 60.0,
    ledger: LedgerFile = None,
    personalize_only: Annotated[Path | None, typer.Option(help="Fit heads to this published model, offline.")] = None,
) -> None:
    """Join a federation with this site's users: their rows and heads never leave this folder."""
    from tacitly.deployment import join as site
    from tacitly.privacy.guarantee import Adjacency, Budget

    if not (folder / "card.json").exists():
        _prepare(folder, table, user, target, exclude, name, tell_rows)
    if personalize_only is not None:
        from tacitly.cli.console import with_heads

        say(f"heads: {site.personalize(folder, with_heads(personalize_only))} (private)")
    elif invitation is not None:
        invited = site.read_invitation(invitation)
        ceiling = None
        if epsilon is not None:
            ceiling = Budget(epsilon=epsilon, delta=delta, adjacency=Adjacency(invited["adjacency"]))
        agreed = partial(_charge, folder, invited, ledger)
        site.join(folder, invited, say, ceiling=ceiling, trust=trust, patience=patience, agreed=agreed)


def _charge(folder: Path, invited: dict[str, Any], ledger: Path | None) -> None:
    """Debit what the coordinator states to the account of this site's users, which other fits and federations debit.

    Joining again costs nothing more. Under trust ``central`` the coordinator draws the noise, so the account counts
    what it promises; a site that adds noise also has a ledger of what it sent.
    """
    import numpy as np

    from tacitly.data.cohort import Cohort
    from tacitly.deployment import join as site
    from tacitly.methods.base import people_of
    from tacitly.privacy import home

    asked = site.asked_for(invited)
    if not asked.private:
        say("the coordinator promises no privacy (epsilon: inf): no account can add this up")
        return
    event, name = site.whole(asked), str(invited["run"])
    people = people_of(Cohort.open(folder / "cohort"), asked.unit, home.secret())
    with charged(asked, [event], people, ledger, name, "federation") as charge:
        # Another coordinator cannot make its run free by giving it the name of a run that is paid for.
        config = {name: invited[name] for name in ("server", "trust", "coordinator")}
        run = charge.account.run(name, config=config, planned=[event], people=people)
        # The debit is all: what is released is drawn and published elsewhere.
        run.release("as its coordinator states", event, lambda: np.zeros(1), noise="exact", grid=0.0, coordinates=1)
    say(f"charged to the account of these users: {charge.path}")


def _prepare(
    folder: Path,
    table: Path | None,
    user: str | None,
    target: str | None,
    exclude: list[str] | None,
    name: str | None,
    tell_rows: bool,
) -> None:
    """Make the site's folder from a table."""
    from tacitly.data.cohort import Cohort
    from tacitly.data.tables import open_table
    from tacitly.data.validation import DataError
    from tacitly.deployment import join as site

    if table is None or user is None:
        raise ValueError(f"{folder} is new: give --table, --user and --target.")
    source = open_table(table, user)
    features = reading.features_beside(source, user, target, exclude=reading.named(exclude, source))
    # The card states the number of users, so users without a target stay. If it states that of rows, every row counts.
    policy = "raise" if tell_rows or target is None else "drop-unlabelled"
    try:
        cohort = Cohort.from_table(table, user=user, target=target, features=features, on_bad_rows=policy)
    except DataError as error:
        advice = " (--exclude NAME leaves a column out.)" if "leave the column out" in str(error) else ""
        raise DataError(f"{error}{advice}") from None
    card = site.prepare(folder, name or folder.name, cohort, tell_rows=tell_rows, user_column=user)
    say(f"{card.users} users; give {folder / 'card.json'} to the coordinator (it is public)")
