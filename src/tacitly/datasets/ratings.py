"""Ratings from a user's own copy of MovieLens or Jester, as tasks for personal models. Nothing is downloaded.

A task predicts ratings from features of the item. Where those come from matters: features computed from everybody's
ratings (a factorisation, as in paper 004) are a release of their own, and a model on top of them is private only if
they are. Two clean ways: what the catalogue says of an item (genres and year, :attr:`Ratings.item_features`), which is
public; or :meth:`Ratings.private_item_features`, a factorisation through the same door, debited to the same ledger.

Which items there are, and which groups, is public, and so comes from the catalogue, never from the ratings: else the
shape of what is learned would tell that somebody rated what nobody else did. Ratings of other items are left out.
"""

from __future__ import annotations

import csv
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Array
from tacitly.data.validation import DataError

Codes = npt.NDArray[np.int64]

_NOT_RATED = 99.0  # in Jester's tables
_YEAR = re.compile(r"\((\d{4})")


@dataclass(frozen=True)
class Ratings:
    """Who rated what how: a row a rating.

    ``users`` are ids; ``items`` positions in ``item_ids``, a public list; ``item_features`` what is publicly known of
    each item (a column of ones, genres, year); ``groups`` a demographic group for each rating's user, where the data
    have one, and ``group_names`` the public list of all there could be.
    """

    users: Codes
    items: Codes
    values: Array
    item_ids: Codes
    item_features: Array
    feature_names: tuple[str, ...]
    groups: npt.NDArray[np.str_] | None = None
    group_names: tuple[str, ...] | None = None

    def tasks(
        self, *, by: str = "user", features: npt.ArrayLike | None = None, adjacency: str = "zero-out"
    ) -> tuple[Array, Array, npt.NDArray[Any]]:
        """Return X, y and the task each row belongs to, for ``fit``.

        ``features`` replace what the catalogue says, a row an item.

        ``by="group"`` makes a task of each of ``group_names``, with the group's mean rating of an item as target (paper
        004, A.1.1). A person who is left out changes the means of a group and does not make it vanish: that is
        replace-one between groups, and what a person is promised is ε of a model with ``adjacency="replace-one"``
        (zero-out would promise a person less than it says). Say so here, and fit with it. For the same reason a group
        without ratings stays, with one row of zeros. A person belongs to the group of their first rating.

        >>> some = Ratings(np.array([7, 7, 8]), np.array([0, 1, 0]), np.array([4.0, 2.0, 3.0]), np.array([10, 20]),
        ...                np.eye(2), ("a", "b"), np.array(["x", "x", "x"]), ("x", "z"))
        >>> some.tasks()[1], some.tasks(by="group", adjacency="replace-one")[1:]
        (array([4., 2., 3.]), (array([3.5, 2. , 0. ]), array(['x', 'x', 'z'], dtype='<U1')))
        """
        table = np.asarray(self.item_features if features is None else features, dtype=np.float64)
        if len(table) != len(self.item_ids) or not table.shape[1]:
            raise DataError(
                f"features must have a row for each of {len(self.item_ids)} items. Found shape {table.shape}."
            )
        if by == "user":
            return table[self.items], self.values.copy(), self.users.copy()
        if by != "group":
            raise ValueError(f"by must be 'user' or 'group'. Found {by!r}.")
        if self.groups is None or self.group_names is None:
            raise DataError("these ratings have no groups, or no public list of them. Use by='user'.")
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
        """Mean rating of each (group, item) there is, with its number group·items + item."""
        _, first, person = np.unique(self.users, return_index=True, return_inverse=True)
        places = {name: place for place, name in enumerate(names)}
        group = np.array([places.get(str(name), -1) for name in groups[first]], dtype=np.int64)[person]
        listed = group >= 0
        cells, where = np.unique((group * len(self.item_ids) + self.items)[listed], return_inverse=True)
        return cells, np.bincount(where, self.values[listed]) / np.bincount(where)

    def matrix(self) -> Any:
        """Return the ratings as a sparse matrix, a row a user (in the order of their ids), a column an item."""
        import scipy.sparse

        ids, rows = np.unique(self.users, return_inverse=True)
        return scipy.sparse.csr_matrix((self.values, (rows, self.items)), shape=(len(ids), len(self.item_ids)))

    def private_item_features(
        self, rank: int, epsilon: float, delta: float = 1e-6, **options: Any
    ) -> tuple[Array, Any]:
        """Return item features from a private factorisation of the ratings, and the model that made them.

        The model's certificate says what they cost (the unit is a user, with all their ratings); give it the ``ledger``
        of what follows, and both are one account. ``options`` are those of :class:`tacitly.FedPower`.
        """
        from tacitly.methods.fedpower.estimator import FedPower

        model = FedPower(rank, epsilon, delta, unit="user", **options).fit(self.matrix(), np.unique(self.users))
        factors = model.components_.T * np.sqrt(len(self.item_ids))
        return np.column_stack([np.ones(len(factors)), factors]), model


def load_movielens(path: str | os.PathLike[str]) -> Ratings:
    """Read a folder of MovieLens: ml-100k (``u.data``), ml-1m (``ratings.dat``) or ml-latest (``ratings.csv``).

    Features of an item are a one, its genres, and its year (in decades from 2000; 0 where unknown). Groups are
    combinations of gender, age group and occupation, where the set has them (ml-100k, ml-1m).
    """
    folder = Path(path)
    kinds = {"u.data": _read_100k, "ratings.dat": _read_1m, "ratings.csv": _read_latest}
    for name, read in kinds.items():
        if (folder / name).is_file():
            return read(folder)
    raise DataError(f"{folder} holds none of {', '.join(kinds)}. Expected an unpacked MovieLens folder.")


def load_jester(path: str | os.PathLike[str], *, n_items: int | None = None) -> Ratings:
    """Read Jester: a table (CSV; the number of ratings, then one column a joke, 99 for none) or ``jester_ratings.dat``.

    A table has a column for every joke. A list of ratings does not say how many jokes there are, and counting those
    that were rated would tell who rated them: give ``n_items`` (jokes 1 to 150 in the published list).

    Jokes have no public features but a one: use :meth:`Ratings.private_item_features`.
    """
    file = Path(path)
    if not file.is_file():
        raise DataError(f"{file} is not a file. Expected a CSV table of Jester or jester_ratings.dat.")
    if file.suffix == ".dat":
        if n_items is None:
            raise DataError(f"{file.name} is no list of jokes. Say how many there are: n_items (published: 150).")
        parts = [line.split() for line in _lines(file, "utf-8")]
        users, items, values = _numbers(parts, file)
        return ratings_of(users, items, values, {joke: ("", ()) for joke in range(1, n_items + 1)})
    cells = [[cell for cell in row if cell.strip()] for row in csv.reader(_lines(file, "utf-8"))]
    try:
        table = np.array([row for row in cells if row], dtype=np.float64)[:, 1:]
    except (ValueError, IndexError):
        raise DataError(f"{file.name} is not a table of numbers with one width. Expected Jester's CSV.") from None
    rows, columns = np.nonzero(table != _NOT_RATED)
    return ratings_of(rows, columns, table[rows, columns], {joke: ("", ()) for joke in range(table.shape[1])})


def _read_100k(folder: Path) -> Ratings:
    users, items, values = _numbers(
        [line.split("\t") for line in _lines(folder / "u.data", "utf-8")], folder / "u.data"
    )
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
    return ratings_of(users, items, values, movies, people, _combinations(range(0, 70, 10), works))


def _read_1m(folder: Path) -> Ratings:
    parts = [line.split("::") for line in _lines(folder / "ratings.dat", "latin-1")]
    users, items, values = _numbers(parts, folder / "ratings.dat")
    movies = {}
    for line in _lines(folder / "movies.dat", "latin-1"):
        name, title, genres = line.split("::")
        movies[int(name)] = (title, genres.split("|"))
    people = {}
    for line in _lines(folder / "users.dat", "latin-1"):
        name, gender, age, work = line.split("::")[:4]
        people[int(name)] = f"{gender} {age} {work}"
    # Ages and occupations as the set's description lists them.
    return ratings_of(users, items, values, movies, people, _combinations((1, 18, 25, 35, 45, 50, 56), range(21)))


def _combinations(ages: Iterable[int], works: Iterable[Any]) -> tuple[str, ...]:
    return tuple(f"{gender} {age} {work}" for gender, age, work in itertools.product("FM", ages, works))


def _read_latest(folder: Path) -> Ratings:
    rows = csv.reader(_lines(folder / "ratings.csv", "utf-8"))
    next(rows)
    users, items, values = _numbers(list(rows), folder / "ratings.csv")
    return ratings_of(users, items, values, read_movies(folder / "movies.csv"))


def read_movies(file: Path) -> dict[int, tuple[str, Sequence[str]]]:
    """Read titles and genres from ml-latest's ``movies.csv``."""
    rows = csv.reader(_lines(file, "utf-8"))
    next(rows)
    return {int(name): (title, [] if genres.startswith("(") else genres.split("|")) for name, title, genres in rows}


def _lines(file: Path, encoding: str) -> Iterator[str]:
    if not file.is_file():
        raise DataError(f"{file.name} is missing in {file.parent}.")
    yield from filter(None, file.read_text(encoding=encoding).split("\n"))


def _numbers(parts: Sequence[Sequence[str]], file: Path) -> tuple[Codes, Codes, Array]:
    try:
        table = np.array([row[:3] for row in parts], dtype=np.float64)
        return table[:, 0].astype(np.int64), table[:, 1].astype(np.int64), table[:, 2]
    except (ValueError, IndexError):
        raise DataError(f"{file.name} is not what it should be: user, item and rating in every line.") from None


def ratings_of(
    users: Codes,
    items: Codes,
    values: Array,
    catalogue: Mapping[int, tuple[str, Sequence[str]]],
    people: Mapping[int, str] | None = None,
    group_names: tuple[str, ...] | None = None,
) -> Ratings:
    """Put ratings together with what is known of items (title with year, genres) and of users (their group).

    The catalogue is public and says which items there are; ratings of others are left out.

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
    users, codes, values = users[listed], np.searchsorted(ids, items[listed]), values[listed]
    groups = None if people is None else np.array([people.get(int(user), "unknown") for user in users], dtype=str)
    return Ratings(users, codes.astype(np.int64), values, ids, features, names, groups, group_names)
