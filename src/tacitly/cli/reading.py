"""How commands read a table: which columns and rows are used, and what is printed about it.

Everything printed here is for the person who has the table, before anything is spent. Columns are left out only because
of their names or because the user says so; a column that looks like an id is reported and used.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacitly.cli.console import say, wrapped
from tacitly.methods import REGISTRY

if TYPE_CHECKING:
    from tacitly.data.cohort import Cohort
    from tacitly.data.missing import Codes
    from tacitly.data.schema import Schema
    from tacitly.data.source import Source
    from tacitly.methods.registry import Method

Exclude = Annotated[
    list[str] | None, typer.Option("--exclude", help="Column to leave out; repeatable, or with commas.")
]
Separator = Annotated[
    str | None, typer.Option("--separator", help="Separator of a text file, such as ';' or tab; default: detected.")
]
Decimal = Annotated[str | None, typer.Option("--decimal", help="Decimal mark, ',' or '.'; default: detected.")]
Missing = Annotated[
    list[str] | None,
    typer.Option("--missing", help="Codes of missing values, as -9,refused (all columns) or NAME=-9,999; repeatable."),
]
DropMissing = Annotated[bool, typer.Option("--drop-missing", help="Leave out rows with a missing cell.")]
Ranges = Annotated[
    list[str] | None,
    typer.Option("--range", help="Public range of a column, as NAME=LOW:HIGH; repeatable. Saves budget."),
]
Levels = Annotated[
    list[str] | None,
    typer.Option("--levels", help="Public levels of a text column, as NAME=FIRST,SECOND,…; repeatable. Saves budget."),
]

_CODES = " If these stand for missing values: --missing unknown,-9."
_MOST_NAMES = 40  # maximum number of columns in a printed list


@dataclass(frozen=True)
class Columns:
    """How the columns of a table are used."""

    user: str
    target: str
    features: list[str] | None = None
    exclude: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    """Text labels of the target, in the order of their codes; empty if the target is a number."""


def opened(
    table: Path, user: str | None, separator: str | None, decimal: str | None, missing: Sequence[str] | None = None
) -> Source:
    """Open a table, and report unusual properties of a text file; ``missing`` are codes of missing values."""
    from tacitly.data.csv_format import CsvFormat
    from tacitly.data.missing import without_codes
    from tacitly.data.tables import open_table

    source = open_table(table, user, CsvFormat(separator, decimal))
    if source.found:
        say(wrapped(f"{table.name}: {source.found}"), err=True)
    codes = codes_of(source, missing)
    codes.pop(user or "", None)  # the id column has no codes of missing values
    return without_codes(source, codes)


def codes_of(source: Source, missing: Sequence[str] | None) -> dict[str, Codes]:
    """Return the codes of missing values of each column: codes given for it, and codes given for all columns."""
    from tacitly.data.grouping import no_such_column
    from tacitly.data.missing import Codes

    general: tuple[str, ...] = ()
    own: dict[str, tuple[str, ...]] = {}
    for text in missing or ():
        name, equals, several = text.partition("=")
        if not equals:
            general += split_names([text])
        elif (name := name.strip()) in source.types:
            own[name] = own.get(name, ()) + split_names([several])
        else:
            raise ValueError(no_such_column(source, "missing", name))
    named = {name: Codes.of([*general, *own.get(name, ())]) for name in source.types}
    return {name: codes for name, codes in named.items() if codes}


def named(texts: Sequence[str] | None, source: Source) -> tuple[str, ...]:
    """Return columns given separately or with commas; a column with a comma in its name is given separately."""
    whole = [[text] if text in source.types else split_names([text]) for text in texts or ()]
    return tuple(name for names in whole for name in names)


def split_names(names: Sequence[str] | None) -> tuple[str, ...]:
    """Return names that were given separately or with commas."""
    return tuple(name.strip() for text in names or () for name in text.split(",") if name.strip())


def declared(
    schema: dict[str, Any] | None, ranges: Sequence[str] | None, levels: Sequence[str] | None = None
) -> dict[str, Any]:
    """Return the public facts about columns: the schema file, overridden by ranges and levels."""
    from tacitly.methods.options import low_high

    columns = {name: dict(about) for name, about in (schema or {}).items()}
    for text in ranges or ():
        name, equals, bounds = text.partition("=")
        if not equals:
            raise ValueError(f"--range must be NAME=LOW:HIGH, such as age=0:120. Found {text!r}.")
        try:
            columns.setdefault(name.strip(), {})["range"] = list(low_high(bounds))
        except ValueError as error:
            raise ValueError(f"--range {name}: {error}") from None
    for text in levels or ():
        name, equals, several = text.partition("=")
        found = split_names([several])
        if not equals or len(found) < 2:
            raise ValueError(f"--levels must be NAME=FIRST,SECOND,…, such as sex=female,male. Found {text!r}.")
        columns[name.strip()] = {"levels": list(found)}
    return columns


def declare_codes(schema: dict[str, Any], names: Sequence[str], codes: dict[str, Codes]) -> None:
    """Add codes of missing values to the public facts about these columns."""
    from tacitly.data.missing import Codes

    for name in names:
        if name in codes:
            about = schema.setdefault(name, {})
            about["missing"] = [*Codes.of(about.get("missing", [])).words, *codes[name].words]


def read_cohort(
    source: Source,
    columns: Columns,
    schema: dict[str, Any] | None,
    *,
    drop_missing: bool,
    folder: Path | None,
    progress: Callable[[str, float], None] | None = None,
    method: Method | None = None,
    fitted: bool = False,
) -> Cohort:
    """Group the rows by user; ``schema`` is None for methods that take only numbers.

    Advice refers to the ``method`` that will be fitted, or, if rows are for a ``fitted`` model, to how they are read.
    """
    from tacitly.data.cohort import Cohort
    from tacitly.data.selection import blanked_rows, complete_rows, labelled, without_empty_rows
    from tacitly.data.validation import DataError, rows_in_words

    names = features_of(source, columns)
    source = without_empty_rows(source, columns.user, [columns.target, *names])
    if columns.labels:
        source = labelled(source, columns.target, columns.labels)
    # Without a target, a row is not useful to any method. Its user stays: the number of users is public, so it must not
    # depend on the contents of their cells.
    if drop_missing:
        source, nobodys = complete_rows(source, [columns.user])
        if nobodys:
            say(f"left out: {rows_in_words(nobodys)} without a user")
    needed = [columns.target, *names] if drop_missing else [columns.target]
    source, left_out = blanked_rows(source, needed, columns.user)
    if left_out:
        what = "a missing cell" if drop_missing else f"a missing {columns.target}"
        say(f"left out: {rows_in_words(left_out)} with {what}")
    user, target = columns.user, columns.target
    try:
        return Cohort.from_table(
            source,
            user=user,
            target=target,
            features=names,
            folder=folder,
            schema=schema,
            on_bad_rows="drop-unlabelled",
            progress=progress,
        )
    except DataError as error:
        if fitted:
            raise DataError(f"{error}{_CODES if 'not numbers' in str(error) else ''}") from None
        raise DataError(f"{error}{_remedy(str(error), target, schema, method)}") from None


def rows_as_fitted(fitted: Any, source: Source, user: str | None, target: str | None = None) -> Cohort:
    """Read a table as the fit of this model read its table; text labels become their positions in ``classes``."""
    column, goal = user or fitted.user_column_, target or fitted.target_name_
    if column is None:
        raise ValueError("the model does not state which column contains the users. Give --user.")
    if goal is None:
        raise ValueError("the model does not state which column is the target.")
    schema = getattr(fitted, "_schema", None)
    features = list(fitted.feature_names_in_ if schema is None else schema.names)
    declared = None if schema is None else schema.to_dict()["columns"]
    columns = Columns(column, goal, [str(name) for name in features], (), labels_of(fitted))
    return read_cohort(source, columns, declared, drop_missing=False, folder=None, fitted=True)


def labels_of(fitted: Any) -> tuple[str, ...]:
    """Return the text labels of a model of classes; empty for other models."""
    classes = tuple(getattr(fitted, "classes", None) or ())
    return classes if classes and isinstance(classes[0], str) else ()


def _remedy(message: str, target: str, schema: dict[str, Any] | None, method: Method | None) -> str:
    """Return advice, in terms of the command's options, about cells that cannot be used."""
    if f"target column {target!r}" in message and "not numbers" in message:
        asked = method or REGISTRY.default("fit")
        able = asked if "classes" in asked.option_names else REGISTRY.default("fit")
        choice = "" if able is asked else f"--method {able.name} "
        loss = "--loss logistic " if "loss" in able.option_names else ""
        return f"{_CODES} If these are classes: {choice}{loss}--classes no,yes (all labels that may occur)."
    if message.startswith("Columns hold dates"):
        return " (--exclude NAME)"
    if message.startswith("Columns hold") and "but for a few cells" in message:
        return " (--missing unknown,-9; --exclude NAME)"
    if "without a user" in message:
        return " (--drop-missing leaves them out.)"
    if "cannot be used" in message and schema is None:
        usual = REGISTRY.default("fit").name
        return f" (--exclude NAME, --drop-missing; --method {usual} takes text and missing cells as they are.)"
    return ""


def point_out_ranges(values: dict[str, Any]) -> None:
    """Print a note if the method uses columns unscaled because no range was declared."""
    if values.get("feature_range", 0) is not None:
        return
    asked = " (and --target-range LOW:HIGH of the target)" if _lacks_target_range(values) else ""
    sizes = "0 to 1" if values.get("shape") else "-1 to 1"
    say(
        wrapped(
            f"note: no range of the columns was declared, so the network uses them unscaled, and learns little "
            f"unless they are about {sizes}. If they are not, stop here and add --feature-range LOW:HIGH{asked}, from "
            "public knowledge, not from these rows."
        )
    )


def _lacks_target_range(values: dict[str, Any]) -> bool:
    return values.get("classes") is None and values.get("target_range", 0) is None


def point_out_ids(source: Source, columns: Columns) -> None:
    """Report the columns that look like ids or free text, and rows that look like totals."""
    from tacitly.data.misfits import totals
    from tacitly.data.selection import id_like
    from tacitly.data.validation import rows_in_words

    names = features_of(source, columns)
    if count := totals(source, names, columns.target):
        say(
            wrapped(
                f"note: {rows_in_words(count)} with {columns.target} and no feature. If they are totals below the "
                "table, stop here and delete them: each counts as a user."
            )
        )
    found = id_like(source, columns.user, names)
    for name, reason in found.items():
        say(wrapped(f"note: column {name!r} {reason}. If it is an id or prose, stop here and add --exclude {name}."))


def point_out_twins(cohort: Cohort, user: str) -> None:
    """Report that some ids differ only in how they are written."""
    from tacitly.data.user_ids import same_but_for_writing

    if same_but_for_writing(cohort.users):
        say(
            wrapped(
                f"note: some ids in column {user!r} differ only in capital letters, spaces or zeros in front. If they "
                "are the same people, stop here and write them alike: as they are, each is a user of its own."
            )
        )


def point_out_misfits(source: Source, columns: Columns, cohort: Cohort, loss: str | None) -> None:
    """Report columns whose cells contradict their declaration; raise if most cells of a column do."""
    from tacitly.data.misfits import misfits, whole, zero_or_one
    from tacitly.data.schema import Schema

    schema = cohort.schema or Schema.declared({name: {} for name in cohort.feature_names})
    found = misfits(source, schema, columns.target)
    wrong = [f"column {name!r} {misfit.words}" for name, misfit in found.items() if misfit.share > 0.5]
    if wrong:
        raise ValueError(f"{'; '.join(wrong)}. Correct --range, --levels or the schema. Nothing was spent.")
    for name, misfit in found.items():
        if misfit.code:
            advice = (
                f"If that means a missing value, stop here and add --missing {shlex.quote(f'{name}={misfit.code}')}."
            )
        elif misfit.mixed:
            advice = (
                "To learn from the numbers, stop here and make the other cells numbers (such as <0.5), or leave them "
                "empty."
            )
        elif misfit.constant:
            advice = f"It carries no information and costs accuracy: --exclude {shlex.quote(name)}."
        else:
            advice = "They count as missing." if "levels" in misfit.words else "They count as outliers."
        say(wrapped(f"note: column {name!r} {misfit.words}. {advice}"))
    if loss == "squared" and zero_or_one(source, columns.target):
        say(wrapped(f"note: {columns.target} is 0 or 1 in every row. For classes, stop here and add --loss logistic."))
    if loss == "poisson" and not whole(source, columns.target):
        said = "is not a whole number everywhere. If it is a measurement and not a count, stop here and leave out"
        say(wrapped(f"note: {columns.target} {said} --loss poisson."))


def point_out_few_users(model: Any, cohort: Cohort) -> None:
    """Print a note, before anything is spent, if there are far too few users; it uses public numbers only."""
    if not hasattr(model, "users_needed"):
        return
    needed, each = model.users_needed(cohort.n_features), cohort.n_rows / cohort.n_users
    features = "1 feature" if cohort.n_features == 1 else f"{cohort.n_features} features"
    if cohort.n_users * 3 < needed:
        say(
            wrapped(
                f"note: {cohort.n_users} users are few for {features} at ε = {model.epsilon:g}; "
                f"about {needed:,} are enough: most likely nothing will be shared. Fewer columns or a larger "
                f"epsilon help; 'tacitly plan --users {cohort.n_users} --rows {max(1, round(each))} --features "
                f"{min(cohort.n_features, 3)}' shows what fewer columns would gain, and spends nothing."
            )
        )


def describe(cohort: Cohort) -> None:
    """Print the features, grouped by how they are processed."""
    import numpy as np

    from tacitly.data.source import row_blocks
    from tacitly.data.validation import listed

    assert cohort.y is not None
    silent = int(np.isnan(cohort.y).sum())  # one empty row for each such user
    rows = (cohort.n_rows - silent) / cohort.n_users
    say(f"{cohort.n_users} users, {rows:.1f} rows each on average; target: {cohort.target_name}; learned from:")
    if silent:
        say(wrapped(f"  {silent} of them have no usable row: they count as users, and get the population's model"))
    if cohort.schema is None:
        say(wrapped(f"  numbers, unscaled: {listed(cohort.feature_names, ', ', _MOST_NAMES)}"))
        return
    for line in kinds(cohort.schema):
        say(wrapped(line))
    if any(_misses_cells(cohort, rows) for rows in row_blocks(cohort.n_rows, cohort.n_features)):
        say(wrapped("  missing cells are replaced by the population's mean (--drop-missing leaves such rows out)"))


def _misses_cells(cohort: Cohort, rows: slice) -> bool:
    """Return whether a row that has a target lacks a feature."""
    import numpy as np

    assert cohort.y is not None
    return bool((np.isnan(cohort.X[rows]).any(axis=1) & ~np.isnan(cohort.y[rows])).any())


def features_of(source: Source, columns: Columns) -> list[str]:
    """Return the columns to learn from, selected by name only; raise if a named column does not exist."""
    return features_beside(source, columns.user, columns.target, columns.features, columns.exclude)


def features_beside(
    source: Source, user: str, target: str | None, features: list[str] | None = None, exclude: Sequence[str] = ()
) -> list[str]:
    """Return the columns to learn from, for a table that need not have a target."""
    from tacitly.data.grouping import choose_columns, no_such_column

    for name in exclude:
        if name not in source.types:
            raise ValueError(no_such_column(source, "excluded", name))
    if features is None:  # a column without a name contains row numbers saved by R or pandas
        features = [name for name in source.types if name not in (user, target) and name.strip()]
    chosen = choose_columns(source, user, target, features)
    return [name for name in chosen if name not in {user, target, *exclude}]


def kinds(schema: Schema) -> list[str]:
    """Return one line per kind of column, with the processing of such columns."""
    groups: dict[str, list[str]] = {"number": [], "range": [], "boolean": [], "category": [], "hashed": []}
    for column in schema.columns:
        if column.range is not None:
            groups["range"].append(f"{column.name} ({column.range[0]:g} to {column.range[1]:g})")
        elif column.kind == "category":
            groups["category"].append(f"{column.name} ({len(column.levels)})")
        else:
            groups[column.kind].append(column.name)
    from tacitly.data.validation import listed

    titles = {
        "number": "numbers, center and scale found privately (--range NAME=LOW:HIGH saves budget)",
        "range": "numbers with a declared range",
        "boolean": "yes or no",
        "category": "declared levels",
        "hashed": "text, frequent levels found privately (--levels NAME=A,B saves budget)",
    }
    return [f"  {titles[kind]}: {listed(names, ', ', _MOST_NAMES)}" for kind, names in groups.items() if names]
