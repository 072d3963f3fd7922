"""Options and printing functions that commands share."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacitly.methods import REGISTRY
from tacitly.progress_line import ProgressLine

if TYPE_CHECKING:
    from tacitly.baselines.comparison import Comparable
    from tacitly.data.cohort import Cohort
    from tacitly.methods.base import PrivateModel
    from tacitly.privacy.certificate import Certificate
    from tacitly.privacy.guarantee import Adjacency

Table = Annotated[
    Path,
    typer.Argument(help="CSV, TSV (also .gz), Parquet or Arrow file: one row per observation.", show_default=False),
]
Model = Annotated[Path, typer.Argument(help="Model folder, as written by fit.", show_default=False)]
User = Annotated[str, typer.Option("--user", help="Column with the user id.", show_default=False)]
Target = Annotated[str, typer.Option("--target", help="Column to predict.", show_default=False)]
Epsilon = Annotated[float, typer.Option("--epsilon", help="Privacy budget; 'inf' for no privacy.", show_default=False)]
Delta = Annotated[float | None, typer.Option("--delta", help="Probability with which epsilon may fail.")]
Neighbours = Annotated[str, typer.Option("--adjacency", help="zero-out or replace-one.")]
Out = Annotated[Path, typer.Option("--out", help="Where to write the model folder.")]
Features = Annotated[str | None, typer.Option("--features", help="Feature columns, with commas; default: all others.")]
Full = Annotated[bool, typer.Option("--full", help="Print the whole certificate: trust, and what is not covered.")]
LedgerFile = Annotated[
    Path | None, typer.Option("--ledger", help="Ledger to debit; default: the account that these users have.")
]

_MEASURES = {"squared": ("squared error", "R²"), "classes": ("wrong", "accuracy"), "poisson": ("deviance", "explained")}


class Interrupted(BaseException):
    """Ctrl-C, as an exception that the option parser does not catch and report itself."""


def method_option(command: str) -> Any:
    """Return the ``--method`` option of a command."""
    names = ", ".join(REGISTRY.offered(command))
    return typer.Option("--method", help=f"{names}. '--method NAME --help' shows the options of one.")


def say(text: str, *, err: bool = False) -> None:
    """Print a line, and flush it even if stdout is not a terminal; ``err`` prints to stderr, if stdout is for data."""
    stream = sys.stderr if err else sys.stdout
    stream.write(text + "\n")
    stream.flush()


def wrapped(text: str) -> str:
    """Return text wrapped to the width of the terminal (100 columns without one), never inside a word."""
    width = max(40, shutil.get_terminal_size((100, 24)).columns)
    lines = []
    for line in text.splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        following = f"{indent}  " if indent else ""
        lines += textwrap.wrap(
            line, width, subsequent_indent=following, break_long_words=False, break_on_hyphens=False
        ) or [""]
    return "\n".join(lines)


def status(what: str) -> ProgressLine:
    """Show the current step, and how long it takes, while the block runs."""
    return ProgressLine(what)


def check_new(out: Path | None) -> None:
    """Raise if a file or a model folder would be overwritten; None for standard output."""
    if out is not None and out.exists():
        raise ValueError(f"{out} exists already. Choose another --out, or move it away.")


def check_writable(out: Path) -> None:
    """Raise if the folder cannot be created. Otherwise a fit would notice only after it has spent its budget."""
    import tempfile

    home = next(parent for parent in out.absolute().parents if parent.exists())
    try:
        Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=home)).rmdir()
    except OSError as error:
        raise ValueError(
            f"{out} cannot be written: {error.strerror} (in {home}). Choose another --out. Nothing was spent."
        ) from None


def check_columns(
    table: Path, out: Path, *, user: str | None = None, target: str | None = None, features: list[str] | None = None
) -> None:
    """Raise if a table is not there or lacks a column, then if a model folder would be overwritten."""
    from tacitly.data.grouping import choose_columns
    from tacitly.data.tables import open_table

    source = open_table(table, user)
    choose_columns(source, user, target, list(source.types) if features is None and user is None else features)
    check_new(out)


def adjacency_of(text: str) -> Adjacency:
    """Read ``--adjacency``."""
    from tacitly.privacy.guarantee import Adjacency

    try:
        return Adjacency(text)
    except ValueError:
        raise ValueError(f"--adjacency must be {' or '.join(map(str, Adjacency))}. Found {text!r}.") from None


def names_in(features: str | None) -> list[str] | None:
    """Return the columns of ``--features``; None for all others."""
    return None if features is None else [name.strip() for name in features.split(",")]


def fit_with_progress(model: PrivateModel, cohort: Cohort) -> None:
    """Fit, which shows its progress; say if kernels are compiled first."""
    with compiling_is_said():
        model.fit(cohort)


@contextmanager
def compiling_is_said() -> Iterator[None]:
    """Print a note, once, if Numba compiles in this block: it does so on the first run, and it takes a while."""
    from tacitly.simd.lazy_njit import TOLD

    said = False

    def say_once() -> None:
        nonlocal said
        if not said:
            said = True
            note = "compiling kernels for this machine (only once, about half a minute) …"
            say(f"\r{note:<{shutil.get_terminal_size().columns - 1}}" if sys.stderr.isatty() else note, err=True)

    TOLD.append(say_once)
    try:
        yield
    finally:
        TOLD.remove(say_once)


def show_certificate(certificate: Certificate, *, full: bool = False) -> None:
    """Print what was released and what it costs; with ``full`` also what is not covered."""
    say(wrapped(str(certificate) if full else certificate.brief()))


def show_comparison(model: Comparable, cohort: Cohort) -> None:
    """Print a comparison of the model with models that do not share, and whether sharing helped."""
    from rich.console import Console
    from rich.table import Table as Grid

    from tacitly.baselines.comparison import held_out, ranges_option, verdict

    with status("comparing") as shown, compiling_is_said():
        held = held_out(model, cohort, progress=lambda what: shown.update(f"comparing: {what}"))
    if held is None:
        say(
            wrapped(
                "no comparison: it holds out rows of users who have two or more, and no user has. With one row per "
                "user, differences between users cannot be distinguished from noise."
            )
        )
        return
    held, absurd = held.without_absurd_users()
    lines = held.lines()
    measures = _MEASURES["classes" if model._loss().classifies else model._loss().name]
    grid = Grid("", "private?", *measures, title="On held-out rows (private: do not publish)")
    for line in lines:
        grid.add_row(line.method, line.private, f"{line.error:.4g}", f"{line.score:.3f}")
    Console().print(grid)
    if absurd:
        whose = "1 user causes" if absurd == 1 else f"{absurd} users cause"
        say(wrapped(f"{whose} most of the error of every method (an extreme cell?). Left out of this comparison."))
    say(wrapped(verdict(lines, ranges_option(model))))


def show_summary(model: Any) -> None:
    """Print what was learned about the population, if the model provides it; this is public."""
    if not hasattr(model, "summary"):
        return
    summary = model.summary()
    text = str(summary)
    say("\n" + (text.replace(summary.warning, wrapped(summary.warning)) if summary.warning else text))
    say("")


def with_heads(folder: Path) -> Any:
    """Load a model that predicts with one personal part per user."""
    from tacitly.methods.personal import PersonalModel
    from tacitly.model_folder import load

    model = load(folder)
    if isinstance(model, PersonalModel):
        return model
    from tacitly.methods.trace_regression.estimator import TraceRegression  # imports Numba, so only if needed

    if isinstance(model, TraceRegression):
        raise ValueError(f"{folder} holds a matrix, the same for all users: there are no heads. Use 'tacitly predict'.")
    raise ValueError(f"{folder} holds a {type(model).__name__}, which has components only and cannot predict.")
