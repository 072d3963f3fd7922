"""Release how well a model predicts: a private score that may be published."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacitly.cli import console, reading
from tacitly.cli.accounts import account_of, charged
from tacitly.cli.console import Model, Table, say, wrapped

if TYPE_CHECKING:
    from tacitly.data.cohort import Cohort
    from tacitly.methods.evaluation import Evaluation
    from tacitly.privacy.guarantee import GaussianEvent
    from tacitly.privacy.ledger import Ledger


def evaluate(
    model: Model,
    table: Table,
    epsilon: Annotated[float, typer.Option(help="Privacy budget of this score.", show_default=False)],
    bound: Annotated[
        float | None, typer.Option(help="Numbers and counts: the largest error that counts, known beforehand.")
    ] = None,
    user: Annotated[str | None, typer.Option(help="Column with the user id; default: as at training.")] = None,
    target: Annotated[str | None, typer.Option(help="Target column; default: as at training.")] = None,
    delta: Annotated[float, typer.Option(help="Probability with which epsilon may fail.")] = 1e-6,
    missing: reading.Missing = None,
    separator: reading.Separator = None,
    decimal: reading.Decimal = None,
    ledger: Annotated[Path | None, typer.Option(help="Ledger to debit; default: the model's account.")] = None,
    out: Annotated[Path, typer.Option(help="Where to write the score and its certificate.")] = Path("evaluation"),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check the table, show the noise, spend nothing.")] = False,
    full: console.Full = False,
) -> None:
    """Release the model's error on held-out rows with privacy noise: a score that may be published.

    The error of a row is 1 for a wrong class, and at most --bound for a number. Users' means are averaged over users.
    """
    import numpy as np

    from tacitly.methods.base import people_of
    from tacitly.methods.evaluation import UNPROTECTED, planned
    from tacitly.methods.evaluation import evaluate as score
    from tacitly.privacy import home

    fitted = console.with_heads(model)
    _check(fitted, bound)
    budget, event = planned(fitted, epsilon, delta)
    if not budget.private:
        raise ValueError("--epsilon must be finite: without noise, no score of private rows may be published.")
    source = reading.opened(table, user or fitted.user_column_, separator, decimal, missing)
    console.check_new(out)
    console.check_writable(out)
    with console.status("reading the table"):
        cohort = reading.rows_as_fitted(fitted, source, user, target)
    _describe(fitted, cohort, event, bound)
    if dry_run:
        say("nothing was spent or written: this was a dry run")
        return
    if not fitted.certificate_.certified:
        say(wrapped(f"note: not covered: {UNPROTECTED}."))
    place = ledger or (account_of(fitted.certificate_) if fitted.certificate_.certified else None)
    notes = _apart(fitted) if place is None and fitted.certificate_.certified else ()
    people = people_of(cohort, budget.unit, home.secret())
    with charged(budget, [event], people, place, f"{fitted.run} evaluation", "evaluation") as charge:
        if _fitted_to(cohort, charge.account):
            say(wrapped("note: the model was fitted to these rows, so its error on new rows is larger."))
        fitted.account_notes = (*notes, *charge.notes)
        asked = cohort.X, _targets(fitted, cohort), np.repeat(cohort.users, np.diff(cohort.offsets))
        found = score(fitted, *asked, epsilon=epsilon, bound=bound, delta=delta, ledger=charge.account)
    say(wrapped(str(found)))
    _write(found, out)
    assert found.certificate is not None
    console.show_certificate(found.certificate, full=full)
    say(f"score: {out}/ (may be published; 'tacitly verify {out}' checks it)\nledger: {charge.path}")


def _check(fitted: Any, bound: float | None) -> None:
    """Raise if the bound is missing, or has no meaning."""
    from tacitly.privacy.guarantee import positive

    classifies = fitted._loss().classifies
    if classifies and bound is not None:
        raise ValueError("--bound is for numbers and counts. This model predicts classes: leave it out.")
    if not classifies and bound is None:
        raise ValueError(
            f"give --bound: the largest error in {fitted.target_name_!r} that counts, known beforehand and not from "
            "these rows. Larger errors count as this one, and the noise grows with it."
        )
    if bound is not None:
        positive(bound=bound)


def _describe(fitted: Any, cohort: Cohort, event: GaussianEvent, bound: float | None) -> None:
    """Print what was read and how large the noise will be, before anything is spent."""
    import numpy as np

    from tacitly.data.user_ids import Directory
    from tacitly.methods.evaluation import noise_of

    assert cohort.y is not None
    silent = int(np.isnan(cohort.y).sum())  # one empty row for each such user
    rows = (cohort.n_rows - silent) / cohort.n_users
    say(f"{cohort.n_users} users, {rows:.1f} rows each on average; target: {cohort.target_name}")
    if silent:
        say(f"  {silent} of them have no usable row: they count with the largest error")
    if len(fitted.users_) and (strangers := int(np.count_nonzero(Directory(fitted.users_).find(cohort.users) < 0))):
        say(f"  {strangers} of them have no personal model here: they get the population's prediction")
    noise = noise_of(event, cohort.n_users) * (1.0 if bound is None else bound)
    say(f"privacy noise of the score: ± {noise:.3g} (95 %)")


def _apart(fitted: Any) -> tuple[str, ...]:
    """Print, and return for the certificate, that the account of the model itself is not the one that is debited."""
    account = fitted.certificate_.account
    if account is None:
        return ()
    note = f"the model's own account, {account['id']}, is not on this machine: what it has spent is not counted here"
    say(wrapped(f"{note} (--ledger names it)"))
    return (note,)


def _write(found: Evaluation, out: Path) -> None:
    """Write a score that is paid for; raise with a warning that another one would be charged again."""
    try:
        found.save(out)
    except OSError as error:
        raise OSError(
            f"{out} could not be written: {error.strerror or error}. The score above is paid for: note it. The same "
            "command again would draw another one, and charge that too."
        ) from None


def _targets(fitted: Any, cohort: Cohort) -> Any:
    """Return the target of each row as the model predicts it; text labels in place of their positions."""
    import numpy as np

    assert cohort.y is not None
    labels = reading.labels_of(fitted)
    if not labels:
        return cohort.y
    usable = np.isfinite(cohort.y)
    return np.where(usable, np.asarray(labels)[np.where(usable, cohort.y, 0).astype(int)], "")


def _fitted_to(cohort: Cohort, account: Ledger) -> bool:
    """Return whether a run of the account had exactly these rows."""
    from tacitly.data.fingerprint import rows_fingerprint
    from tacitly.privacy.people import key_name

    known = f"{key_name(account.secret)}:{rows_fingerprint(cohort, account.secret)}"
    return any(run.config.get("data") == known for run in account.runs())
