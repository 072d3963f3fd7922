"""The ``tacitly`` command.

Exit codes: 0 done; 1 a check failed (``verify``); 2 something is wrong with what was given (options, table, folder);
3 the privacy budget does not allow it; 130 interrupted (run the same command again to go on).
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from tacitly.cli import account, audit, federation, personal, trace
from tacitly.cli import fit as learn
from tacitly.cli import svd as components

app = typer.Typer(
    help="Learn together without telling: a shared representation under user-level differential privacy, "
    "and a personal model for every user.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

for command in (
    learn.demo,
    learn.fit,
    personal.predict,
    personal.personalize,
    components.svd,
    trace.trace,
    account.verify,
    audit.audit,
    account.budget,
    account.publish,
    federation.serve,
    federation.join,
):
    app.command()(command)


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
        from tacitly.privacy.ledger import BudgetExceeded, LedgerMismatch, RunInUse

        if isinstance(error, BudgetExceeded):
            _complain(str(error), 3)
        if isinstance(error, LedgerMismatch | RunInUse) or type(error).__module__.startswith("tacitly.federation."):
            _complain(str(error), 2)
        raise


def _complain(message: str, code: int) -> None:
    sys.stderr.write(f"tacitly: {message}\n")
    raise SystemExit(code)
