"""Fit a private recommender on a table of ratings or plays, and recommend from it."""

from __future__ import annotations

import csv
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacitly.cli.accounts import opened_account
from tacitly.cli.console import (
    Delta,
    LedgerFile,
    Neighbours,
    check_columns,
    fit_with_progress,
    names_in,
    say,
    show_certificate,
    status,
)

if TYPE_CHECKING:
    from tacitly.methods.recommender.estimator import Recommender

Source = Annotated[
    Path, typer.Argument(help="Table of ratings (user, item, rating) to fit, or a model folder.", show_default=False)
]

_RATING = r"\s*([^\s,][^=]*?)\s*=\s*([-+]?[\d.]+(?:[eE][-+]?\d+)?)\s*(?:,|$)"


def recommend(
    source: Source,
    catalogue: Annotated[
        Path | None,
        typer.Option(help="Fit: table of all items, with their id and public features.", show_default=False),
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="Fit: privacy budget; 'inf' for no privacy.")] = None,
    user: Annotated[str, typer.Option(help="Fit: column with the user id.")] = "user",
    item: Annotated[str, typer.Option(help="Fit: column with the item id, in both tables.")] = "item",
    rating: Annotated[str | None, typer.Option(help="Fit: column with the rating; leave out for plays.")] = None,
    range_: Annotated[str | None, typer.Option("--range", help="Fit: lowest and highest rating: 1,5.")] = None,
    features: Annotated[
        str | None, typer.Option(help="Fit: numeric feature columns of the catalogue, with commas; default: none.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Fit: where to write the model folder.")] = Path("recommender"),
    delta: Delta = 1e-6,
    adjacency: Neighbours = "zero-out",
    ledger: LedgerFile = None,
    for_: Annotated[str | None, typer.Option("--for", help="Model folder: the user to recommend items to.")] = None,
    rated: Annotated[
        str | None, typer.Option(help="Model folder: somebody's own ratings, as item=4,other=2 (plays: item,other).")
    ] = None,
    k: Annotated[int, typer.Option("-k", help="Model folder: how many items.")] = 10,
) -> None:
    """Learn from ratings or plays, privately; then recommend to a user (--for) or to a newcomer (--rated)."""
    if source.is_dir():
        _show(source, for_, rated, k)
        return
    if not source.exists():
        raise ValueError(f"there is no {source}. Expected a table of ratings to fit, or the folder of a fitted model.")
    if catalogue is None or epsilon is None:
        raise ValueError(
            "to fit, give --catalogue ITEMS.csv (the list of items is public, so it is not read from the ratings) and "
            "--epsilon. To recommend, give a model folder."
        )
    _check_items(source, item)
    check_columns(source, out, user=user, target=rating, features=[item])
    with status("reading the tables"):
        model, columns = _read(source, catalogue, user, item, rating, range_, names_in(features) or [])
    model.set_params(epsilon=epsilon, delta=delta, adjacency=adjacency, run=out.name)
    _fit(model, columns, user, ledger, out)


def _check_items(source: Path, item: str) -> None:
    """Raise if the table has no column of items."""
    from tacitly.data.grouping import no_such_column
    from tacitly.data.tables import open_table
    from tacitly.data.validation import DataError

    opened = open_table(source)
    if item not in opened.types:
        raise DataError(f"{no_such_column(opened, 'item', item)} Name it with --item.")


def _read(
    source: Path, catalogue: Path, user: str, item: str, rating: str | None, range_: str | None, features: list[str]
) -> tuple[Recommender, tuple[Any, Any, Any]]:
    """Return an estimator for the catalogue, and the columns of the ratings."""
    from tacitly.datasets.ratings import load_ratings
    from tacitly.methods.recommender.estimator import Recommender

    ids, table = _catalogue(catalogue, item, features)
    bounds = None
    if rating is not None:
        try:
            low, high = (float(part) for part in (range_ or "").split(","))
        except ValueError:
            raise ValueError(
                f"--rating needs --range LOW,HIGH: the range of ratings is public. Found {range_!r}."
            ) from None
        bounds = (low, high)
    elif range_ is not None:
        raise ValueError("--range is for --rating COLUMN.")
    users, items, values, _ = load_ratings(source, ids, user=user, item=item, rating=rating)
    return Recommender(1.0, items=ids, item_features=table, rating_range=bounds), (users, items, values)


def _catalogue(path: Path, item: str, features: list[str]) -> tuple[Any, Any]:
    import numpy as np

    from tacitly.data.schema import infer
    from tacitly.data.source import batch_rows
    from tacitly.data.tables import open_table
    from tacitly.data.validation import DataError

    opened = open_table(path, item)
    for name in (item, *features):
        if name not in opened.types:
            raise DataError(f"{path.name} has no column {name!r}. Found {', '.join(opened.types)}.")
    parts = list(opened.batches([item, *features], batch_rows(1 + len(features))))
    ids = np.concatenate([part[0] for part in parts])
    if not features:
        return ids, None
    columns = infer(opened, features).columns
    text = [repr(column.name) for column in columns if column.kind not in ("number", "boolean")]
    if text:
        raise DataError(
            f"{path.name}: feature columns must hold numbers, or yes or no. Found text in {', '.join(text)}: turn "
            "genres into yes/no columns."
        )
    cells = [np.concatenate([part[1 + j] for part in parts]) for j in range(len(features))]
    return ids, np.hstack([column.encode(values)[0] for column, values in zip(columns, cells, strict=True)])


def _fit(model: Recommender, columns: tuple[Any, Any, Any], user: str, ledger: Path | None, out: Path) -> None:
    from tacitly.model_folder import save
    from tacitly.privacy.guarantee import check_target

    check_target(model.epsilon, model.delta)  # an invalid budget would become the ceiling of a new ledger
    cohort = model.cohort(*columns)
    with opened_account(model, cohort, ledger, out) as path:
        fit_with_progress(model, cohort)
        model.user_column_ = user
        save(model, out)
    show_certificate(model.certificate_)
    say(model.summary())
    say(f"model: {out}/ ('tacitly publish' leaves its private/ out)\nledger: {path}")
    say(f"next: tacitly recommend {out} --for USER")


def _show(folder: Path, user: str | None, rated: str | None, k: int) -> None:
    from tacitly.methods.recommender.estimator import Recommender
    from tacitly.model_folder import load

    model = load(folder)
    if not isinstance(model, Recommender):
        raise ValueError(
            f"{folder} holds a {type(model).__name__}. Expected a recommender, as 'tacitly recommend' writes."
        )
    if (user is None) == (rated is None):
        raise ValueError("give --for USER (a user of the fit) or --rated ITEM=RATING,… (a new user).")
    if rated is None:
        if not _found(model.users_, [user]).all():
            say(f"{user} is not among this folder's users: these are recommendations for an unknown user.", err=True)
        best = model.recommend(user, k)
    else:
        ratings = _ratings(rated, plays=model.learned_.plays)
        names = list(ratings)
        if unknown := [name for name, there in zip(names, _found(model.items, names), strict=True) if not there]:
            raise ValueError(f"--rated: not in the catalogue: {', '.join(unknown)}. Expected ids of the catalogue.")
        best = model.recommend_new(ratings, k)
    written = csv.writer(sys.stdout, lineterminator="\n")
    written.writerow(["item", "score"])
    written.writerows([item, f"{score:.6g}"] for item, score in zip(best.items, best.scores, strict=True))


def _found(ids: Any, wanted: list[Any]) -> Any:
    """Return which of these ids exist."""
    import numpy as np

    from tacitly.data.user_ids import Directory

    if not (len(ids) and wanted):
        return np.zeros(len(wanted), dtype=bool)
    return Directory(np.asarray(ids)).find(np.asarray(wanted)) >= 0


def _ratings(text: str, *, plays: bool) -> Any:
    """Return ratings written as item=4,other=2, or only items for plays.

    >>> _ratings("a=4,b=2.5", plays=False), _ratings("a, b", plays=True)
    ({'a': 4.0, 'b': 2.5}, ['a', 'b'])
    >>> _ratings("Ran=4, Cats, the Film=2", plays=False)  # a comma inside a name
    {'Ran': 4.0, 'Cats, the Film': 2.0}
    """
    if plays:
        return [part.strip() for part in text.split(",") if part.strip()]
    found = re.findall(_RATING, text)
    if re.sub(_RATING, "", text).strip(" ,"):
        raise ValueError(f"--rated must be written as ITEM=RATING,ITEM=RATING. Found {text!r}.")
    return {name: float(value) for name, value in found}
