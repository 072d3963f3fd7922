"""The ``tacit`` command.

Exit codes: 0 done; 1 a check failed (``verify``); 2 something is wrong with what was given (options, table, folder);
3 the privacy budget does not allow it; 130 interrupted (run the same command again to go on).
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from tacit.cohort import Cohort
    from tacit.comparison import Line
    from tacit.estimators import SharedBasisModel

app = typer.Typer(
    help="Learn together without telling: a shared representation under user-level differential privacy, "
    "and a personal model for every user.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

Table = Annotated[Path, typer.Argument(help="CSV, Parquet or Arrow file: a row an observation.", show_default=False)]
Model = Annotated[Path, typer.Argument(help="Model folder, as written by fit.", show_default=False)]
User = Annotated[str, typer.Option("--user", help="Column with the user id.", show_default=False)]
Target = Annotated[str, typer.Option("--target", help="Column to predict.", show_default=False)]


@app.command()
def fit(
    table: Table,
    user: User,
    target: Target,
    rank: Annotated[int, typer.Option(help="Number of shared directions.", show_default=False)],
    epsilon: Annotated[float, typer.Option(help="Privacy budget; 'inf' for no privacy.", show_default=False)],
    out: Annotated[Path, typer.Option(help="Where to write the model folder.")] = Path("model"),
    delta: Annotated[float, typer.Option(help="Probability with which epsilon may fail.")] = 1e-6,
    adjacency: Annotated[str, typer.Option(help="zero-out or replace-one.")] = "zero-out",
    method: Annotated[str, typer.Option(help="fedrep or altmin.")] = "fedrep",
    features: Annotated[str | None, typer.Option(help="Feature columns, with commas; default: all others.")] = None,
    intercept: Annotated[bool, typer.Option(help="Give every user a level of their own.")] = False,
    ledger: Annotated[Path | None, typer.Option(help="Account to debit; default: OUT.ledger, new.")] = None,
    on_disk: Annotated[
        Path | None, typer.Option(help="Group the rows in this folder instead of memory; used again if it is there.")
    ] = None,
    compare: Annotated[bool, typer.Option(help="Compare with what you would have without it.")] = True,
) -> None:
    """Fit a model on a table of (user, features, target)."""
    from tacit.cohort import Cohort
    from tacit.estimators import PrivateAltMin, PrivateFedRep
    from tacit.model_folder import save
    from tacit.privacy.guarantee import Adjacency, Budget
    from tacit.privacy.ledger import Ledger

    if out.exists():
        raise ValueError(f"{out} exists already. Choose another --out, or remove it.")
    if method not in ("fedrep", "altmin"):
        raise ValueError(f"--method must be fedrep or altmin. Found {method!r}.")
    if intercept and method == "altmin":
        raise ValueError("--intercept is for --method fedrep only.")
    budget = Budget(epsilon=epsilon, delta=delta, adjacency=Adjacency(adjacency))
    chosen = None if features is None else [name.strip() for name in features.split(",")]
    with _status("reading the table"):
        if on_disk is not None and on_disk.exists():
            cohort = Cohort.open(on_disk)
            if cohort.target_name != target or (chosen is not None and list(cohort.feature_names) != chosen):
                raise ValueError(
                    f"{on_disk} holds rows with another target or other features. Remove it, or name another."
                )
            _say(f"using the rows grouped in {on_disk} earlier (remove it to read the table again)")
        else:
            cohort = Cohort.from_table(table, user=user, target=target, features=chosen, folder=on_disk)
    _say(f"{cohort.n_users} users, {cohort.n_features} features")
    if not 1 <= rank <= cohort.n_features:
        raise ValueError(f"--rank must lie between 1 and the number of features ({cohort.n_features}). Found {rank}.")
    path = ledger or out.with_name(out.name + ".ledger")
    # An account of its own gets this run's budget as its ceiling; one that exists keeps the ceiling it has.
    ceiling = None if path.exists() or not budget.private else budget
    with Ledger(path, ceiling=ceiling) as account:
        shared: dict[str, Any] = {
            "rank": rank,
            "epsilon": epsilon,
            "delta": delta,
            "adjacency": adjacency,
            "ledger": account,
            "run": out.name,
        }
        fedrep = method == "fedrep"
        model = PrivateFedRep(**shared, fit_intercept=intercept) if fedrep else PrivateAltMin(**shared)
        _fit_with_progress(model, cohort)
        model.user_column_ = user
        save(model, out)
    _show_certificate(model)
    if compare:
        _compare(model, cohort)
    _say(f"model: {out}/ (share it with 'tacit publish'; private/ holds the heads)\nledger: {path}")


@app.command()
def svd(
    table: Table,
    rank: Annotated[str, typer.Option(help="Number of components, or 'auto'.", show_default=False)],
    epsilon: Annotated[float, typer.Option(help="Privacy budget; 'inf' for no privacy.", show_default=False)],
    unit: Annotated[str, typer.Option(help="row or user: whose data are protected.", show_default=False)],
    user: Annotated[str | None, typer.Option(help="Column with the user (device) id.")] = None,
    out: Annotated[Path, typer.Option(help="Where to write the model folder.")] = Path("components"),
    delta: Annotated[float, typer.Option(help="Probability with which epsilon may fail.")] = 1e-6,
    adjacency: Annotated[str, typer.Option(help="zero-out or replace-one.")] = "zero-out",
    features: Annotated[str | None, typer.Option(help="Feature columns, with commas; default: all others.")] = None,
    low: Annotated[float | None, typer.Option(help="Public lower bound of every feature.")] = None,
    high: Annotated[float | None, typer.Option(help="Public upper bound of every feature.")] = None,
    center: Annotated[bool, typer.Option(help="Subtract the mean, bought privately (PCA).")] = False,
    route: Annotated[str, typer.Option(help="auto, gram, power, device or local-noise.")] = "auto",
    trust: Annotated[str, typer.Option(help="central, or local: every user adds the noise.")] = "central",
    ledger: Annotated[Path | None, typer.Option(help="Account to debit; default: OUT.ledger, new.")] = None,
) -> None:
    """Find the top components of everybody's rows."""
    from rich.console import Console
    from rich.table import Table as Grid

    from tacit.cohort import Cohort
    from tacit.fedpower import FedPower
    from tacit.ingest import read_columns
    from tacit.model_folder import save
    from tacit.privacy.guarantee import Adjacency, Budget, Unit
    from tacit.privacy.ledger import Ledger
    from tacit.tables import open_table

    if out.exists():
        raise ValueError(f"{out} exists already. Choose another --out, or remove it.")
    if unit not in ("row", "user"):
        raise ValueError(f"--unit must be row or user. Found {unit!r}.")
    if unit == "user" and user is None:
        raise ValueError("--unit user needs --user COLUMN: the column with the user id.")
    if (low is None) != (high is None):
        raise ValueError("--low and --high go together.")
    if rank != "auto" and not rank.isdigit():
        raise ValueError(f"--rank must be a whole number or auto. Found {rank!r}.")
    budget = Budget(epsilon=epsilon, delta=delta, adjacency=Adjacency(adjacency), unit=Unit(unit))
    chosen = None if features is None else [name.strip() for name in features.split(",")]
    if user is not None:
        cohort = Cohort.from_table(table, user=user, features=chosen)
    else:
        names = chosen if chosen is not None else list(open_table(table).types)
        rows, _ = read_columns(table, names, None)
        cohort = Cohort.from_offsets(rows, None, [0, len(rows)], feature_names=names)
    path = ledger or out.with_name(out.name + ".ledger")
    with Ledger(path, ceiling=None if path.exists() or not budget.private else budget) as account:
        model = FedPower(
            rank if rank == "auto" else int(rank),
            epsilon,
            delta,
            adjacency,
            unit=unit,
            center=center,
            feature_range=None if low is None else (low, high),
            route=route,
            trust=trust,
            ledger=account,
            run=out.name,
        ).fit(cohort)
        save(model, out)
    _say(str(model.certificate_))
    grid = Grid("component", "singular value", "confidence", title=f"route: {model.route_}")
    for number, (value, sure) in enumerate(zip(model.singular_values_, model.confidence_, strict=True), start=1):
        grid.add_row(str(number), f"{value:.4g}", f"{sure:.3f}")
    Console().print(grid)
    _say(f"expected sine of the angle to the true space, from noise: {model.predicted_error_:.3g}")
    _say(f"components: {out}/ (all of it public)\nledger: {path}")


@app.command()
def predict(
    model: Model,
    table: Table,
    user: Annotated[str | None, typer.Option(help="Column with the user id; default: as at training.")] = None,
    head: Annotated[Path | None, typer.Option(help="A head from 'personalize', for all rows.")] = None,
    out: Annotated[Path | None, typer.Option(help="CSV to write; default: standard output.")] = None,
) -> None:
    """Predict each row of a table with its user's head."""
    import numpy as np

    from tacit.ingest import read_columns
    from tacit.model_folder import load_head, write_private

    fitted = _with_heads(model)
    names = [str(name) for name in fitted.feature_names_in_]
    if head is not None:
        rows, _ = read_columns(table, names, None)
        lines = [f"{value!r}" for value in load_head(head, fitted).predict(rows).tolist()]
        header = "prediction"
    else:
        column = user or fitted.user_column_
        if column is None:
            raise ValueError("which column holds the user id? Say --user COLUMN.")
        rows, ids = read_columns(table, names, column)
        assert ids is not None
        values = fitted.predict(rows, np.asarray(ids)).tolist()
        lines = [f"{_quoted(str(name))},{value!r}" for name, value in zip(ids, values, strict=True)]
        header = f"{_quoted(column)},prediction"
    text = "\n".join([header, *lines]) + "\n"
    if out is None:
        sys.stdout.write(text)
    else:
        write_private(out, text.encode())
        _say(f"{len(lines)} predictions: {out} (personal: readable by you only)")


@app.command()
def personalize(
    model: Model,
    table: Table,
    out: Annotated[Path, typer.Option(help="Where to write the head.")] = Path("head.json"),
    target: Annotated[str | None, typer.Option(help="Target column; default: as at training.")] = None,
) -> None:
    """Fit a head for a new user from that user's own rows. Costs nobody any privacy; works on a published model."""
    import numpy as np

    from tacit.ingest import read_columns
    from tacit.model_folder import save_head

    fitted = _with_heads(model)
    column = target or fitted.target_name_
    if column is None:
        raise ValueError("which column is the target? Say --target COLUMN.")
    names = [str(name) for name in fitted.feature_names_in_]
    rows, _ = read_columns(table, [*names, column], None)
    values = np.asarray(rows, dtype=np.float64)
    save_head(fitted.personalize(values[:, :-1], values[:, -1]), out)
    _say(f"head from {len(values)} rows: {out} (private; use it with 'tacit predict --head')")


@app.command()
def verify(
    model: Model,
    ledger: Annotated[Path | None, typer.Option(help="Also compare with this ledger.")] = None,
    allow_uncertified: Annotated[bool, typer.Option("--allow-uncertified", help="Even if it claims nothing.")] = False,
) -> None:
    """Derive epsilon again from the certificate's releases with independent code; exit 1 if anything is off."""
    from tacit.privacy.ledger import Ledger
    from tacit.privacy.verification import verify as check

    for name in ("certificate.json", "billboard.safetensors"):
        if not (model / name).is_file():
            raise ValueError(f"{model} is not a model folder: {name} is missing.")
    if ledger is not None and not ledger.is_file():
        raise ValueError(f"there is no ledger at {ledger}.")
    text = (model / "certificate.json").read_text(encoding="utf-8")
    billboard = (model / "billboard.safetensors").read_bytes()
    account = Ledger(ledger) if ledger is not None else None
    verdict = check(text, billboard=billboard, ledger=account, allow_uncertified=allow_uncertified)
    _say(str(verdict))
    if not verdict.ok:
        raise typer.Exit(1)


@app.command()
def budget(ledger: Annotated[Path, typer.Argument(help="Ledger file.", show_default=False)]) -> None:
    """Show what a ledger has been debited, and what is left."""
    from rich.console import Console
    from rich.table import Table as Grid

    from tacit.privacy.certificate import shown
    from tacit.privacy.ledger import Ledger

    if not ledger.is_file():
        raise ValueError(f"there is no ledger at {ledger}.")
    with Ledger(ledger) as account:
        grid = Grid("run", "state", "releases", "ε", title=str(ledger))
        for run in account.runs():
            epsilon = "" if run.epsilon is None else shown(run.epsilon)
            grid.add_row(run.name, run.state, str(run.releases), epsilon)
        Console().print(grid)
        ceiling = account.ceiling
        if ceiling is None:
            _say(f"spent ε = {shown(account.spent(delta=1e-6))} at δ = 1e-06 (zero-out); no ceiling")
        else:
            _say(
                f"spent ε = {shown(account.spent())} of {ceiling.epsilon:g} at δ = {ceiling.delta:g} "
                f"({ceiling.adjacency}, unit: {ceiling.unit})"
            )


@app.command()
def publish(
    model: Model,
    target: Annotated[Path, typer.Argument(help="New folder for the public part.", show_default=False)],
    allow_uncertified: Annotated[bool, typer.Option("--allow-uncertified", help="Even without a certificate.")] = False,
) -> None:
    """Copy the public part of a model (no heads, no ids), after verifying its certificate."""
    from tacit.model_folder import publish as copy_public

    copy_public(model, target, allow_uncertified=allow_uncertified)
    _say(f"public part: {target}/ (basis, certificate, configuration; no heads, no ids)")


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where to write the model folder.")] = Path("demo-model"),
    epsilon: Annotated[float, typer.Option(help="Privacy budget.")] = 1.0,
    users: Annotated[int, typer.Option(help="Number of synthetic users.")] = 5000,
) -> None:
    """Show the whole thing on synthetic users in seconds: fit, certificate, comparison, model folder."""
    import shutil

    from tacit.cohort import Cohort
    from tacit.datasets import make_shared_subspace
    from tacit.estimators import PrivateFedRep
    from tacit.linalg import subspace_distance
    from tacit.model_folder import PUBLIC, save

    if out.exists():
        if not all((out / name).is_file() for name in PUBLIC):
            raise ValueError(f"{out} exists and is not a model folder. Choose another --out.")
        shutil.rmtree(out)
    _say(f"{users} synthetic users with 10 rows each: 50 features, 2 shared directions, a head of their own")
    data = make_shared_subspace(users, 50, 2, 10, noise=0.1)
    cohort = Cohort.from_arrays(data.X, data.y, data.users)
    model = PrivateFedRep(rank=2, epsilon=epsilon, run="demo")
    _fit_with_progress(model, cohort)
    save(model, out)
    _show_certificate(model)
    _compare(model, cohort)
    _say(f"distance to the true subspace: {subspace_distance(model.basis_, data.basis):.4f}")
    _say(f"model: {out}/  next: tacit verify {out}")


def main() -> None:
    """Run the command; turn what is the user's to mend into one line and an exit code."""
    with _plain_errors():
        app()


class _Interrupted(BaseException):
    """Ctrl-C, under a name that the option parser does not catch and report as its own."""


def _interrupt(*_: object) -> None:
    raise _Interrupted


@contextmanager
def _plain_errors() -> Iterator[None]:
    signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    except _Interrupted:
        _complain("interrupted. Run the same command again to go on; nothing is spent twice.", 130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(141) from None
    except (ValueError, OSError) as error:
        _complain(str(error), 2)
    except RuntimeError as error:
        from tacit.privacy.ledger import BudgetExceeded, LedgerMismatch, RunInUse

        if isinstance(error, BudgetExceeded):
            _complain(str(error), 3)
        if isinstance(error, LedgerMismatch | RunInUse):
            _complain(str(error), 2)
        raise


def _complain(message: str, code: int) -> None:
    sys.stderr.write(f"tacit: {message}\n")
    raise SystemExit(code)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _fit_with_progress(model: SharedBasisModel, cohort: Cohort) -> None:
    from rich.console import Console
    from rich.progress import Progress

    from tacit.privacy.guarantee import Adjacency, Budget

    budget = Budget(epsilon=model.epsilon, delta=model.delta, adjacency=Adjacency(model.adjacency))
    total = len(model._planned(budget))
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("releases", total=total)

        def tell(name: str) -> None:
            progress.update(task, advance=1, description=name)

        report: Callable[[str], None] = tell
        model.fit(cohort, on_release=report)


def _status(what: str) -> AbstractContextManager[Any]:
    from rich.console import Console

    return Console(stderr=True).status(what)


def _with_heads(folder: Path) -> SharedBasisModel:
    from tacit.estimators import SharedBasisModel
    from tacit.model_folder import load

    model = load(folder)
    if not isinstance(model, SharedBasisModel):
        raise ValueError(f"{folder} holds a {type(model).__name__}: components only, nothing to predict with.")
    return model


def _show_certificate(model: SharedBasisModel) -> None:
    _say(str(model.certificate_))


def _compare(model: SharedBasisModel, cohort: Cohort) -> None:
    from rich.console import Console
    from rich.table import Table as Grid

    from tacit.comparison import compare

    with _status("comparing with what you would have without it"):
        lines: list[Line] = compare(model, cohort)
    grid = Grid(
        "", "private?", "squared error", "R²", title="On rows held out from every head (private: do not publish)"
    )
    for line in lines:
        grid.add_row(line.method, line.private, f"{line.mse:.4g}", f"{line.r2:.3f}")
    Console().print(grid)


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if any(mark in text for mark in ',"\n\r') else text


if __name__ == "__main__":
    main()
