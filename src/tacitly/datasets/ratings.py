"""Read a local copy of MovieLens or Jester, or any table of ratings. Nothing is downloaded.

A task predicts ratings from features of the item. The origin of the features matters for privacy: features computed
from all users' ratings (a factorisation, as in AMHT-LRS) are themselves a release, and a model on top of them is
private only if they are. There are two sound options: features from the catalogue (genres and year,
:attr:`Ratings.item_features`), which are public; or :meth:`Ratings.private_item_features`, a private factorisation
debited to the same ledger.

The lists of items and of groups are public, so they come from the catalogue and never from the ratings. Otherwise the
shape of the result could reveal that one user rated an item that no other user rated. Ratings of items outside the
catalogue are left out; their users stay on the roster.
"""

from __future__ import annotations

import csv
import itertools
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Array
from tacitly.data.validation import DataError, numbers
from tacitly.privacy.guarantee import UncertifiedWarning

Codes = npt.NDArray[np.int64]

_NOT_RATED = 99.0  # marks missing ratings in Jester's tables
_YEAR = re.compile(r"\((\d{4})")


@dataclass(frozen=True)
class Ratings:
    """Ratings of items by users, one entry per rating.

    ``users`` are ids; ``items`` are positions in ``item_ids``, a public list; ``item_features`` are public features of
    each item (a column of ones, genres, year); ``groups`` is the demographic group of each rating's user, if the data
    have groups, and ``group_names`` the public list of all possible groups. ``silent`` are users on the roster without
    a rating of a listed item.
    """

    users: Codes
    items: Codes
    values: Array
    item_ids: Codes
    item_features: Array
    feature_names: tuple[str, ...]
    groups: npt.NDArray[np.str_] | None = None
    group_names: tuple[str, ...] | None = None
    silent: Codes = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    times: Array | None = None  # time of each rating, in any unit

    @property
    def catalogue_features(self) -> Array:
        """Features for :class:`tacitly.Recommender`: the catalogue's without the constant, and the squared year."""
        years = [self.item_features[:, [j]] ** 2 for j, name in enumerate(self.feature_names) if name == "year"]
        return np.hstack([self.item_features[:, 1:], *years])

    @property
    def roster(self) -> Codes:
        """The ids of all users, in order, with and without ratings of listed items."""
        return np.unique(np.concatenate([self.users, self.silent]))

    def tasks(
        self, *, by: str = "user", features: npt.ArrayLike | None = None, adjacency: str = "zero-out"
    ) -> tuple[Array, Array, npt.NDArray[Any]]:
        """Return X, y and the task of each row, for ``fit``.

        A user without ratings of listed items has one row of zeros, so that n_users does not reveal who has no rating.

        ``features`` replace the catalogue's features, one row per item.

        ``by="group"`` makes one task of each of ``group_names``, with the group's mean rating of an item as target
        (AMHT-LRS, A.1.1). Leaving a person out changes the means of a group and does not remove the group: this is
        replace-one between groups. So a person is protected by the ε of a model with ``adjacency="replace-one"``
        (zero-out would state more protection than a person has). Pass it here and to the model. For the same reason a
        group without ratings is kept, with one row of zeros. A person belongs to the group of their first rating.

        >>> some = Ratings(np.array([7, 7, 8]), np.array([0, 1, 0]), np.array([4.0, 2.0, 3.0]), np.array([10, 20]),
        ...                np.eye(2), ("a", "b"), np.array(["x", "x", "x"]), ("x", "z"))
        >>> some.tasks()[1], some.tasks(by="group", adjacency="replace-one")[1:]
        (array([4., 2., 3.]), (array([3.5, 2. , 0. ]), array(['x', 'x', 'z'], dtype='<U1')))
        """
        table = np.asarray(self.item_features if features is None else features, dtype=np.float64)
        if len(table) != len(self.item_ids) or not table.shape[1]:
            raise DataError(f"features must have one row per item ({len(self.item_ids)}). Found shape {table.shape}.")
        if by == "user":
            nothing = np.zeros((len(self.silent), table.shape[1]))
            X, y = np.vstack([table[self.items], nothing]), np.append(self.values, nothing[:, 0])
            return X, y, np.append(self.users, self.silent)
        if by != "group":
            raise ValueError(f"by must be 'user' or 'group'. Found {by!r}.")
        if self.groups is None or self.group_names is None:
            raise DataError("these ratings have no groups, or no public list of groups. Use by='user'.")
        if adjacency != "replace-one":
            raise ValueError(
                "leaving a person out replaces the group's rows: pass adjacency='replace-one' here and to the model. "
                f"Found {adjacency!r}."
            )
        cells, means = self._group_means(self.groups, self.group_names)
        owner, item = cells // len(table), cells % len(table)
        empty = np.setdiff1d(np.arange(len(self.group_names)), owner)
        names = np.array(self.group_names)
        X = np.vstack([table[item], np.zeros((len(empty), table.shape[1]))])
        return X, np.append(means, np.zeros(len(empty))), names[np.append(owner, empty)]

    def _group_means(self, groups: npt.NDArray[np.str_], names: tuple[str, ...]) -> tuple[Codes, Array]:
        """Return the cell number group·items + item of each rated (group, item) pair, and its mean rating."""
        _, first, person = np.unique(self.users, return_index=True, return_inverse=True)
        numbers = {name: number for number, name in enumerate(names)}
        group = np.array([numbers.get(str(name), -1) for name in groups[first]], dtype=np.int64)[person]
        listed = group >= 0
        cells, where = np.unique((group * len(self.item_ids) + self.items)[listed], return_inverse=True)
        return cells, np.bincount(where, self.values[listed]) / np.bincount(where)

    def matrix(self) -> Any:
        """Return the ratings as a sparse matrix: one row per user, in the order of their ids, one column per item."""
        import scipy.sparse

        ids = self.roster
        rows = np.searchsorted(ids, self.users)
        return scipy.sparse.csr_matrix((self.values, (rows, self.items)), shape=(len(ids), len(self.item_ids)))

    def private_item_features(
        self, rank: int, epsilon: float, delta: float = 1e-6, **options: Any
    ) -> tuple[Array, Any]:
        """Return item features from a private factorisation of the ratings, and the fitted factorisation.

        Its certificate states their privacy cost (the unit is a user, with all their ratings); pass it the ``ledger``
        of the model that follows, so that one ledger accounts for both. ``options`` are those of
        :class:`tacitly.FedPower`.
        """
        from tacitly.methods.fedpower.estimator import FedPower

        model = FedPower(rank, epsilon, delta, unit="user", **options).fit(self.matrix(), users=self.roster)
        factors = model.components_.T * np.sqrt(len(self.item_ids))
        return np.column_stack([np.ones(len(factors)), factors]), model

    def uncertified_item_features(self, rank: int) -> Array:
        """Return item features from all ratings, as in AMHT-LRS. They are private, and no budget covers them.

        The matrix of ratings is completed (:mod:`tacitly.datasets.completion`) and its leading ``rank`` right singular
        vectors are the features. No certificate covers a model on top of them: for experiments without privacy.
        :meth:`private_item_features` is the certified factorisation.
        """
        from tacitly.datasets.completion import LARGEST, complete

        shape = len(self.roster), len(self.item_ids)
        if shape[0] * shape[1] > LARGEST:
            raise DataError(f"a matrix to complete has at most {LARGEST:,} cells. Found {shape[0]} × {shape[1]}.")
        if not 1 <= rank <= min(shape):
            raise ValueError(f"rank must lie between 1 and {min(shape)}. Found {rank!r}.")
        warnings.warn(
            "features computed from all ratings are private: no certificate covers a model on them. Use "
            "private_item_features for features that are covered.",
            UncertifiedWarning,
            stacklevel=2,
        )
        completed = complete(np.searchsorted(self.roster, self.users), self.items, self.values, shape)
        right = np.linalg.svd(completed, full_matrices=False)[2][:rank]
        return np.asarray(right.T * np.sqrt(len(self.item_ids)))


def load_movielens(path: str | os.PathLike[str]) -> Ratings:
    """Read a folder of MovieLens: 100k (``u.data``), 1M, 10M (``ratings.dat``), 20M, 25M, latest (``ratings.csv``).

    Features of an item are a constant one, its genres, and its year (in decades from 2000; 0 if unknown). Groups are
    combinations of gender, age group and occupation, if the set has them (ml-100k, ml-1m).
    """
    folder = Path(path)
    kinds = {"u.data": _read_100k, "ratings.dat": _read_1m, "ratings.csv": _read_latest}
    for name, read in kinds.items():
        if (folder / name).is_file():
            return read(folder)
    raise DataError(f"{folder} contains none of {', '.join(kinds)}. Expected an unpacked MovieLens folder.")


def load_ratings(
    path: str | os.PathLike[str],
    items: npt.ArrayLike,
    *,
    user: str = "user",
    item: str = "item",
    rating: str | None = "rating",
    time: str | None = None,
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], Array | None, Array | None]:
    """Read users, items, ratings and times from a CSV, Parquet or Arrow table, by the names of its columns.

    ``items`` is the public catalogue: rows with other items are left out. A user who has no other row keeps one of
    them, so that the roster does not depend on what was rated. ``rating=None`` for plays.
    """
    from tacitly.data.source import batch_rows
    from tacitly.data.tables import open_table
    from tacitly.data.user_ids import Directory

    wanted = [name for name in (user, item, rating, time) if name is not None]
    if len(set(wanted)) < len(wanted):
        raise DataError(f"a column can be used once. Found {', '.join(wanted)}.")
    table = open_table(Path(path), user)
    if missing := [name for name in wanted if name not in table.types]:
        raise DataError(f"{Path(path).name} has no column {missing[0]!r}. Found {', '.join(table.types)}.")
    parts = list(table.batches(wanted, batch_rows(len(wanted))))
    columns = {name: np.concatenate([part[at] for part in parts]) for at, name in enumerate(wanted)}
    listed = Directory(items).find(columns[item]) >= 0
    kept = listed | _only_sign(columns[user], listed)
    found = {name: numbers(columns[name][kept]) for name in (rating, time) if name is not None}
    for name, (_, invalid) in found.items():
        if invalid:
            raise DataError(
                f"column {name!r} must be numbers, but some cells are not. Correct them, or leave them empty: a "
                "row without a rating is left out."
            )
    values, times = (None if name is None else found[name][0].astype(np.float64) for name in (rating, time))
    return columns[user][kept], columns[item][kept], values, times


def _only_sign(users: npt.NDArray[Any], listed: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Mark the first row of each user who has no row with a listed item."""
    from tacitly.data.user_ids import factor

    ids, codes = factor(users)
    silent = np.bincount(codes[listed & (codes >= 0)], minlength=len(ids)) == 0
    marked = np.zeros(len(users), dtype=bool)
    owned = np.flatnonzero(codes >= 0)
    first = owned[np.unique(codes[owned], return_index=True)[1]]
    marked[first[silent]] = True
    return marked


def load_jester(path: str | os.PathLike[str], *, n_items: int | None = None) -> Ratings:
    """Read Jester: a CSV table (number of ratings, then one column per joke, 99 for none) or ``jester_ratings.dat``.

    A table has a column for every joke. A list of ratings does not contain the number of jokes, and counting the rated
    jokes would reveal a joke that only one user rated: pass ``n_items`` (jokes 1 to 150 in the published list).

    Jokes have no public features except a constant one: use :meth:`Ratings.private_item_features`.
    """
    file = Path(path)
    if not file.is_file():
        raise DataError(f"{file} is not a file. Expected a CSV table of Jester or jester_ratings.dat.")
    if file.suffix == ".dat":
        if n_items is None:
            raise DataError(f"{file.name} does not list all jokes. Pass their number as n_items (published: 150).")
        parts = [line.split() for line in _lines(file, "utf-8")]
        users, items, values = _numbers(parts, file)
        return ratings_of(users, items, values, {joke: ("", ()) for joke in range(1, n_items + 1)})
    cells = [[cell for cell in row if cell.strip()] for row in csv.reader(_unzipped(file))]
    try:
        table = np.array([row for row in cells if row], dtype=np.float64)[:, 1:]
    except (ValueError, IndexError):
        raise DataError(f"{file.name} is not a rectangular table of numbers. Expected Jester's CSV.") from None
    rows, columns = np.nonzero(table != _NOT_RATED)
    return ratings_of(rows, columns, table[rows, columns], {joke: ("", ()) for joke in range(table.shape[1])})


def _read_100k(folder: Path) -> Ratings:
    users, items, values, times = _table(folder / "u.data", "\t")
    genres = [line.split("|")[0] for line in _lines(folder / "u.genre", "utf-8")]
    movies = {}
    for line in _lines(folder / "u.item", "latin-1"):
        parts = line.split("|")
        flags = [name for name, flag in zip(genres, parts[-len(genres) :], strict=True) if flag == "1"]
        movies[int(parts[0])] = (parts[1], flags)
    people = {}
    for line in _lines(folder / "u.user", "utf-8"):
        name, age, gender, work = line.split("|")[:4]
        people[int(name)] = f"{gender} {min(int(age) // 10 * 10, 60)} {work}"
    works = _lines(folder / "u.occupation", "utf-8")
    return ratings_of(users, items, values, movies, people, _combinations(range(0, 70, 10), works), times)


def _read_1m(folder: Path) -> Ratings:
    users, items, values, times = _table(folder / "ratings.dat", "::")
    movies: dict[int, tuple[str, Sequence[str]]] = {}
    for line in _lines(folder / "movies.dat", "latin-1"):
        name, title, genres = line.split("::")
        movies[int(name)] = (title, [] if genres.startswith("(") else genres.strip().split("|"))
    if not (folder / "users.dat").is_file():  # ml-10m has no users.dat
        return ratings_of(users, items, values, movies, times=times)
    people = {}
    for line in _lines(folder / "users.dat", "latin-1"):
        name, gender, age, work = line.split("::")[:4]
        people[int(name)] = f"{gender} {age} {work}"
    # Ages and occupations as listed in the set's description.
    groups = _combinations((1, 18, 25, 35, 45, 50, 56), range(21))
    return ratings_of(users, items, values, movies, people, groups, times)


def _combinations(ages: Iterable[int], works: Iterable[Any]) -> tuple[str, ...]:
    return tuple(f"{gender} {age} {work}" for gender, age, work in itertools.product("FM", ages, works))


def _read_latest(folder: Path) -> Ratings:
    users, items, values, times = _table(folder / "ratings.csv", ",", header=True)
    return ratings_of(users, items, values, read_movies(folder / "movies.csv"), times=times)


def read_movies(file: Path) -> dict[int, tuple[str, Sequence[str]]]:
    """Read titles and genres from ml-latest's ``movies.csv``."""
    rows = csv.reader(_lines(file, "utf-8"))
    next(rows)
    return {int(name): (title, [] if genres.startswith("(") else genres.split("|")) for name, title, genres in rows}


def _unzipped(file: Path) -> Iterator[str]:
    """Yield the lines of a file, or of the only file in a zip."""
    if file.suffix != ".zip":
        yield from _lines(file, "utf-8")
        return
    import io
    import zipfile

    with zipfile.ZipFile(file) as archive, archive.open(archive.namelist()[0]) as inside:
        yield from filter(None, io.TextIOWrapper(inside, encoding="utf-8"))


def _lines(file: Path, encoding: str) -> Iterator[str]:
    if not file.is_file():
        raise DataError(f"{file.name} is missing from {file.parent}.")
    yield from filter(None, file.read_text(encoding=encoding).split("\n"))


def _table(file: Path, separator: str, *, header: bool = False) -> tuple[Codes, Codes, Array, Array | None]:
    """Read user, item, rating and time, quickly: files have up to 25 million lines."""
    import io

    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    if not file.is_file():
        raise DataError(f"{file.name} is missing from {file.parent}.")
    data = file.read_bytes()
    if len(separator) > 1:
        data, separator = data.replace(separator.encode(), b"\t"), "\t"
    try:
        cells = arrow_csv.read_csv(
            io.BytesIO(data),
            read_options=arrow_csv.ReadOptions(autogenerate_column_names=True, skip_rows=int(header)),
            parse_options=arrow_csv.ParseOptions(delimiter=separator),
        )
        columns = [cells.column(j).cast(pa.float64()).to_numpy() for j in range(min(cells.num_columns, 4))]
        users, items, values = columns[:3]
    except (pa.ArrowException, ValueError):
        raise DataError(f"{file.name} could not be read. Expected user, item and rating in every line.") from None
    if not (np.isfinite(users).all() and np.isfinite(items).all() and np.isfinite(values).all()):
        raise DataError(f"{file.name} could not be read. Expected user, item and rating in every line.")
    return users.astype(np.int64), items.astype(np.int64), values, columns[3] if len(columns) > 3 else None


def _numbers(parts: Sequence[Sequence[str]], file: Path) -> tuple[Codes, Codes, Array]:
    try:
        table = np.array([row[:3] for row in parts], dtype=np.float64)
        return table[:, 0].astype(np.int64), table[:, 1].astype(np.int64), table[:, 2]
    except (ValueError, IndexError):
        raise DataError(f"{file.name} could not be read. Expected user, item and rating in every line.") from None


def ratings_of(
    users: Codes,
    items: Codes,
    values: Array,
    catalogue: Mapping[int, tuple[str, Sequence[str]]],
    people: Mapping[int, str] | None = None,
    group_names: tuple[str, ...] | None = None,
    times: Array | None = None,
) -> Ratings:
    """Combine ratings with a catalogue of items (title with year, genres) and the groups of users.

    The catalogue is public and defines the list of items; ratings of other items are left out.

    >>> ratings_of(np.array([1]), np.array([5]), np.array([4.0]), {5: ("Brazil (1985)", ["Comedy"])}).item_features
    array([[ 1. ,  1. , -1.5]])
    """
    ids = np.array(sorted(catalogue), dtype=np.int64)
    genres = sorted({genre for _, flags in catalogue.values() for genre in flags})
    dated = any(_YEAR.search(title) for title, _ in catalogue.values())
    names = ("one", *genres, *(("year",) if dated else ()))
    features = np.zeros((len(ids), len(names)))
    features[:, 0] = 1.0
    for row, item in enumerate(ids):
        title, flags = catalogue[int(item)]
        features[row, [1 + genres.index(flag) for flag in flags]] = 1.0
        if year := _YEAR.search(title):
            features[row, -1] = (int(year[1]) - 2000) / 10.0
    listed = np.isin(items, ids)
    silent = np.setdiff1d(users, users[listed])
    users, codes, values = users[listed], np.searchsorted(ids, items[listed]), values[listed]
    groups = None if people is None else np.array([people.get(int(user), "unknown") for user in users], dtype=str)
    times = None if times is None else times[listed]
    return Ratings(users, codes.astype(np.int64), values, ids, features, names, groups, group_names, silent, times)
