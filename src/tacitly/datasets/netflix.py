"""Read a local copy of the Netflix Prize data. The owner withdrew them; nothing is downloaded."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Array
from tacitly.data.validation import DataError
from tacitly.datasets.ratings import Ratings, ratings_of

_MOVIE = re.compile(rb"(?m)^(\d+):\s*$")


def load_netflix(path: str | os.PathLike[str]) -> Ratings:
    """Read a folder of the Netflix Prize: ``movie_titles.csv`` (or ``.txt``) and the ratings.

    Ratings are ``combined_data_1.txt`` to ``combined_data_4.txt``, or ``training_set/mv_*.txt``: blocks that start with
    a line ``movie:``, followed by lines ``user,stars,date``. Features of a movie are a constant one and its year; times
    are days.
    """
    folder = Path(path)
    files = sorted(folder.glob("combined_data_*.txt")) or sorted((folder / "training_set").glob("mv_*.txt"))
    titles = next((file for file in (folder / "movie_titles.csv", folder / "movie_titles.txt") if file.is_file()), None)
    if titles is None or not files:
        raise DataError(
            f"{folder.name} has no {'ratings' if titles else 'movie_titles.csv'}. Expected movie_titles.csv beside "
            "combined_data_*.txt or training_set/mv_*.txt."
        )
    blocks = [block for file in files for block in _blocks(file)]
    users, stars, days = (np.concatenate([block[at] for block in blocks]) for at in (1, 2, 3))
    movies = np.repeat([block[0] for block in blocks], [len(block[1]) for block in blocks])
    return ratings_of(users.astype(np.int64), movies, stars, _catalogue(titles), times=days)


def _blocks(file: Path) -> Iterator[tuple[int, npt.NDArray[Any], npt.NDArray[Any], Array]]:
    """Yield each movie with the users, stars and days of its ratings."""
    import pyarrow as pa
    from pyarrow import csv

    start, *parts = _MOVIE.split(file.read_bytes())
    if start.strip() or not parts:
        raise DataError(f"{file.name} could not be read. Expected a line 'movie:' before lines 'user,stars,date'.")
    for movie, text in zip(parts[::2], parts[1::2], strict=True):
        if not text.strip():
            continue
        try:
            rows = csv.read_csv(
                io.BytesIO(text.lstrip()), read_options=csv.ReadOptions(column_names=["user", "stars", "day"])
            )
            users, stars = rows.column("user").cast(pa.int64()), rows.column("stars").cast(pa.float64())
            days = rows.column("day").cast(pa.date32()).cast(pa.int32())
        except (pa.ArrowException, ValueError):
            raise DataError(f"{file.name} could not be read. Expected lines 'user,stars,date'.") from None
        yield int(movie), users.to_numpy(), stars.to_numpy(), days.to_numpy().astype(np.float64)


def _catalogue(file: Path) -> dict[int, tuple[str, tuple[str, ...]]]:
    """Read the public list of movies: number, year or NULL, title, which may contain commas."""
    movies: dict[int, tuple[str, tuple[str, ...]]] = {}
    for line in file.read_text(encoding="latin-1").splitlines():
        number, _, rest = line.partition(",")
        year, _, title = rest.partition(",")
        if number.strip().isdigit():
            movies[int(number)] = (f"{title} ({year})" if year.isdigit() else title, ())
    return movies
