"""The ``tacitly`` command.

Exit codes: 0 success; 1 a check failed (``verify``, ``audit``); 2 an error in the input (options, table, folder); 3 the
privacy budget is not sufficient; 130 interrupted (run the same command again to resume).
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from tacitly.cli.audit import audit
from tacitly.cli.budget import budget
from tacitly.cli.certificate import certificate
from tacitly.cli.console import Interrupted
from tacitly.cli.demo import demo
from tacitly.cli.evaluate import evaluate
from tacitly.cli.fit import fit
from tacitly.cli.forget import forget
from tacitly.cli.help_pages import Command, Group
from tacitly.cli.join import join
from tacitly.cli.method_options import MethodCommand
from tacitly.cli.personalize import personalize
from tacitly.cli.plan import PlanCommand, plan
from tacitly.cli.predict import predict
from tacitly.cli.publish import publish
from tacitly.cli.recommend import recommend
from tacitly.cli.report import report
from tacitly.cli.serve import ServeCommand, serve
from tacitly.cli.svd import svd
from tacitly.cli.trace import trace
from tacitly.cli.ui import ui
from tacitly.cli.verify import verify

app = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

_KINDS = {plan: PlanCommand, fit: MethodCommand, svd: MethodCommand, trace: MethodCommand, serve: ServeCommand}

_SHARING = (demo, plan, fit, predict, personalize, evaluate, recommend, svd, trace)
_KEEPING = (verify, report, audit, certificate, publish, forget, serve, join, ui)
for command in (*_SHARING, *_KEEPING):
    app.command(cls=_KINDS.get(command, Command))(command)
app.add_typer(budget, name="budget")


def _show_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"tacitly {version('tacitly')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Learn shared and personal models from the private rows of many users, under user-level differential privacy."""


def main() -> None:
    """Run the command; report user errors as a message and an exit code."""
    with _plain_errors():
        app(prog_name="tacitly")


def _interrupt(*_: object) -> None:
    raise Interrupted


@contextmanager
def _plain_errors() -> Iterator[None]:
    signal.signal(signal.SIGINT, _interrupt)
    usual, warnings.formatwarning = warnings.formatwarning, _plain_warning
    try:
        yield
    except Interrupted:
        _complain("interrupted. Run the same command again to resume; nothing is spent twice.", 130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(141) from None
    except OSError as error:
        _complain(_without_number(error), 2)
    except ValueError as error:
        _complain(str(error), 2)
    except ModuleNotFoundError as error:
        from tacitly.extras import advice

        if advised := advice(error):
            _complain(advised, 2)
        raise
    except RuntimeError as error:
        from tacitly.privacy.ledger import BudgetExceeded, LedgerMismatch, RunInUse

        if isinstance(error, BudgetExceeded):
            _complain(str(error), 3)
        if isinstance(error, LedgerMismatch | RunInUse) or type(error).__module__.startswith("tacitly.federation."):
            _complain(str(error), 2)
        raise
    finally:
        warnings.formatwarning = usual


def _plain_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """Return a warning without path and source line, for users."""
    return f"tacitly: {message}\n"


def _without_number(error: OSError) -> str:
    """Return the reason of a file error in words, without the system's error number."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
        return f"{where}the disk is full. Make room and run the same command again; nothing is spent twice."
    if error.strerror is None or not isinstance(error.filename, str | bytes | os.PathLike):
        return str(error)
    path = Path(os.fsdecode(error.filename))
    if isinstance(error, FileNotFoundError) and not path.parent.exists():
        return f"{path}: the folder {path.parent} does not exist."
    return f"{path}: {error.strerror}."


def _complain(message: str, code: int) -> None:
    text = f"tacitly: {message}"
    if sys.stderr.isatty():  # otherwise a single line, for programs
        from tacitly.cli.console import wrapped

        text = wrapped(text)
    sys.stderr.write(f"{text}\n")
    raise SystemExit(code)
