"""Accounts: the privacy budget spent on a group of people, and its ceiling."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer

from tacitly.cli.console import Neighbours, say, status
from tacitly.cli.help_pages import Command, Group

if TYPE_CHECKING:
    from tacitly.privacy.ledger import Ledger
    from tacitly.privacy.people import People

_SEAL = "tacitly seal 1"

File = Annotated[Path, typer.Argument(help="Ledger file, or a model folder.", show_default=False)]
Ceiling = Annotated[float, typer.Option("--epsilon", help="Budget of all fits together.", show_default=False)]
Delta = Annotated[float, typer.Option("--delta", help="Probability with which epsilon may fail.")]


class _ShowByDefault(Group):
    """``tacitly budget FILE`` means ``tacitly budget show FILE``."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        """Insert ``show`` if no subcommand is named."""
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            args = ["show", *args]
        return super().parse_args(context, args)


budget = typer.Typer(
    cls=_ShowByDefault,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Show or create privacy accounts. 'tacitly budget MODEL' shows one account, 'tacitly budget list' all.",
)


@budget.command(cls=Command)
def create(
    ledger: Annotated[Path, typer.Argument(help="New ledger file.", show_default=False)],
    epsilon: Ceiling,
    delta: Delta = 1e-6,
    adjacency: Neighbours = "zero-out",
    roster: Annotated[
        Path | None, typer.Option(help="Table with the ids of the people; no others may use the account.")
    ] = None,
    user: Annotated[str | None, typer.Option(help="The roster's column with the ids; default: the first.")] = None,
    renews: Annotated[str | None, typer.Option(help="yearly, quarterly or monthly: a new budget each period.")] = None,
    curator: Annotated[str | None, typer.Option(help="Who is responsible; stated in certificates.")] = None,
    purpose: Annotated[str | None, typer.Option(help="What it is for; stated in certificates.")] = None,
    region: Annotated[str | None, typer.Option(help="Where, and under what law; stated in certificates.")] = None,
) -> None:
    """Create an account for a group of people: the budget that all fits on them may spend together."""
    from tacitly.cli.accounts import accounts_of
    from tacitly.privacy import home
    from tacitly.privacy.guarantee import Adjacency, Budget
    from tacitly.privacy.ledger import Ledger
    from tacitly.privacy.people import People

    if ledger.exists():
        raise ValueError(f"{ledger} exists already. Show it with 'tacitly budget {ledger}', or choose another name.")
    ceiling = Budget(epsilon=epsilon, delta=delta, adjacency=Adjacency(adjacency))
    people: People | None = None
    if roster is not None:
        with status("reading the roster"):
            people = People.of(_ids(roster, user), home.secret())
        if known := accounts_of(people):
            raise ValueError(
                f"some of these people already have an account: {', '.join(known)}. A second one would start at ε = 0. "
                f"Set the ceiling of the first with 'tacitly budget limit {known[0]} --epsilon {epsilon:g}'. If these "
                "are different people with the same ids, leave out --roster and name the new account at each fit: "
                f"--ledger {ledger}."
            )
    words = {"curator": curator, "purpose": purpose, "region": region, "roster": "closed" if people else None}
    about = {key: value for key, value in words.items() if value is not None}
    with Ledger(ledger, ceiling=ceiling, renews=renews, about=about) as account:
        if people is not None:
            account.enrol(people)
            home.remember_people(account.id, people)
        _show(account)


@budget.command(cls=Command)
def show(ledger: File) -> None:
    """Show what was spent on an account, and what is left."""
    with _opened(ledger) as account:
        _show(account)


@budget.command("list", cls=Command)
def list_accounts() -> None:
    """List the accounts that this machine has seen."""
    from tacitly.privacy import home
    from tacitly.privacy.certificate import shown
    from tacitly.privacy.ledger import Ledger, LedgerMismatch

    for seen in home.known().values():
        try:
            if not Path(seen.path).is_file():
                raise OSError("the file is missing")
            with Ledger(seen.path) as account:
                people, ceiling = _people(account), account.ceiling
                spent = shown(account.spent(delta=1e-6 if ceiling is None else None))
                most = "no ceiling" if ceiling is None else f"ceiling {ceiling.epsilon:g}"
            say(f"{seen.path}: {people}, spent ε = {spent}, {most}")
        except (LedgerMismatch, OSError) as error:
            say(f"{seen.path}: {error}")


@budget.command(cls=Command)
def limit(ledger: File, epsilon: Ceiling, delta: Delta = 1e-6, adjacency: Neighbours = "zero-out") -> None:
    """Set a ceiling if an account has none, or lower it. It cannot be raised."""
    from tacitly.privacy.guarantee import Adjacency, Budget

    with _opened(ledger) as account:
        account.limit(Budget(epsilon=epsilon, delta=delta, adjacency=Adjacency(adjacency)))
        _show(account)


@budget.command(cls=Command)
def seal(
    ledger: File, out: Annotated[Path | None, typer.Option(help="File for the seal; default: print it.")] = None
) -> None:
    """Write a seal of an account's state, to keep elsewhere: 'tacitly budget check' detects a restored older copy."""
    from tacitly.privacy.certificate import today

    with _opened(ledger) as account:
        entries, head = account.head
        text = json.dumps({"format": _SEAL, "account": account.id, "entries": entries, "head": head, "date": today()})
    if out is None:
        say(text)
        return
    if out.exists():
        raise ValueError(f"{out} exists already. Choose another name: older seals remain useful.")
    out.write_text(text + "\n", encoding="utf-8")
    say(f"seal: {out} (keep it on another machine, or print it)")


@budget.command(cls=Command)
def check(
    ledger: File, sealed: Annotated[Path, typer.Argument(help="A seal of this account.", show_default=False)]
) -> None:
    """Check that an account still contains everything that it had when a seal was made; exit 1 if not."""
    try:
        stored: dict[str, Any] = json.loads(sealed.read_text("utf-8"))
        account_id, entries, head = str(stored["account"]), int(stored["entries"]), str(stored["head"])
        known = stored["format"] == _SEAL
    except (ValueError, KeyError, TypeError):
        known = False
    if not known:
        raise ValueError(f"{sealed} must be a seal written by 'tacitly budget seal' ({_SEAL}).")
    with _opened(ledger) as account:
        problem = None
        if account.id != account_id:
            problem = "the seal is of another account"
        elif account.hash_at(entries) is None:
            problem = f"it has {account.head[0]} entries, but had {entries}: an older copy was restored"
        elif account.hash_at(entries) != head:
            problem = f"entry {entries} was changed after the seal was made"
        say(f"FAILED {ledger}: {problem}" if problem else f"ok {ledger}: all {entries} entries are as sealed")
    if problem:
        raise typer.Exit(1)


def _opened(ledger: Path) -> Ledger:
    from tacitly.privacy.ledger import Ledger

    found = _of_model(ledger) or ledger
    if found.is_dir():
        raise ValueError(f"this machine does not know the account of {found}. Give the ledger file.")
    if not found.is_file():
        raise ValueError(f"there is no ledger at {found}. 'tacitly budget list' shows the accounts of this machine.")
    return Ledger(found)


def _of_model(folder: Path) -> Path | None:
    """Return the ledger of a model folder's account, if this machine has seen it."""
    from tacitly.privacy import home
    from tacitly.privacy.certificate import Certificate

    stated = folder / "certificate.json"
    if not stated.is_file():
        return None
    account = Certificate.from_json(stated.read_text("utf-8")).account
    seen = None if account is None else home.known().get(account["id"])
    return None if seen is None else Path(seen.path)


def _ids(table: Path, column: str | None) -> list[Any]:
    from tacitly.data.grouping import count_users
    from tacitly.data.selection import without_empty_rows
    from tacitly.data.tables import open_table

    name = column or next(iter(open_table(table).types))
    source = open_table(table, user=name)
    return list(count_users(without_empty_rows(source, name, list(source.types)), name)[0])


def _people(account: Ledger) -> str:
    """Return how many people an account knows, in words; a coordinator's and a site's know no ids."""
    people = sum(len(part) for part in account.people())
    return f"{people} people" if people else "people whose ids it does not know"


def _show(account: Ledger) -> None:
    from rich.console import Console
    from rich.table import Table as Grid

    from tacitly.privacy.certificate import shown

    say(str(account.path))
    grid = Grid("run", "state", "releases", "ε")
    for run in account.runs(delta=1e-6):
        grid.add_row(run.name, run.state, str(run.releases), "" if run.epsilon is None else shown(run.epsilon))
    Console().print(grid)
    say(f"account {account.id}: {_people(account)}{' (a closed roster)' if account.closed else ''}")
    ceiling = account.ceiling
    if ceiling is None:
        say(f"spent ε = {shown(account.spent(delta=1e-6))} at δ = 1e-06 (zero-out); no ceiling")
        return
    where = f"at δ = {ceiling.delta:g} ({ceiling.adjacency}, unit: {ceiling.unit})"
    if account.renews is None:
        say(f"spent ε = {shown(account.spent())} of {ceiling.epsilon:g} {where}")
        return
    say(f"spent ε = {shown(account.spent(this_period=True))} of {ceiling.epsilon:g} in this period {where}")
    say(f"the ceiling renews {account.renews}; everything ever spent on these people: ε = {shown(account.spent())}")
