"""Load the papers' public data sets from a folder outside the repository (TACITLY_DATA)."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tacitly.datasets.ratings import Ratings, ratings_of, read_movies

Array = npt.NDArray[np.float64]

FOLDER = Path(os.environ.get("TACITLY_DATA", Path(__file__).parents[2] / "shared" / "data"))


def available() -> bool:
    """Whether the data sets were found."""
    return (FOLDER / "a9a").is_dir()


def load(name: str) -> Array:
    """Return the rows of a data set on their public range: [−1, 1], MNIST on [0, 1]."""
    loaders = {
        "a9a": _a9a, "connect4": _connect4, "covtype": _covtype, "ijcnn1": _ijcnn1, "mnist": _mnist, "w8a": _w8a,
    }  # fmt: skip
    return np.ascontiguousarray(_covtype()[:, :10]) if name == "covtype-numeric" else loaders[name]()


def min_max(X: Array) -> Array:
    """Return every column on [0, 1], as scikit-learn's MinMaxScaler does; a constant column becomes zeros."""
    low, high = X.min(axis=0), X.max(axis=0)
    return (X - low) / np.where(high > low, high - low, 1.0)


def movielens() -> Ratings:
    """Return MovieLens latest-small from the folder's compact copy."""
    folder = FOLDER / "ml-latest-small"
    parts = np.load(folder / "ratings.npz")
    movies = read_movies(folder / "movies.csv")
    return ratings_of(parts["user"].astype(int), parts["movie"].astype(int), parts["rating_x2"] / 2.0, movies)


def public_range(name: str) -> tuple[float, float]:
    """Return the bounds of every feature."""
    return (0.0, 1.0) if name == "mnist" else (-1.0, 1.0)


def _a9a() -> Array:
    import scipy.sparse

    parts = np.load(FOLDER / "a9a" / "a9a.train.npz")
    rows = scipy.sparse.csr_matrix((parts["data"], parts["indices"], parts["indptr"]), shape=tuple(parts["shape"]))
    return np.asarray(2.0 * rows.toarray() - 1.0)


def _connect4() -> Array:
    parts = np.load(FOLDER / "connect4" / "connect4.npz")
    board = parts[next(key for key in parts.files if parts[key].ndim == 2)].astype(int)
    return np.asarray(2.0 * np.eye(3)[board].reshape(len(board), 126) - 1.0)


def _covtype() -> Array:
    parts = np.load(FOLDER / "covtype" / "covtype.npz")
    numeric = parts["X_num"].astype(np.float64)
    low, high = numeric.min(axis=0), numeric.max(axis=0)  # the published ranges of the ten columns
    scaled = 2.0 * (numeric - low) / (high - low) - 1.0
    wilderness, soil = parts["wilderness"].astype(int), parts["soil"].astype(int)
    return np.hstack([scaled, 2.0 * np.eye(4)[wilderness] - 1.0, 2.0 * np.eye(40)[soil] - 1.0])


def _mnist() -> Array:
    with gzip.open(FOLDER / "mnist" / "train-images-idx3-ubyte.gz") as file:
        pixels = np.frombuffer(file.read(), np.uint8, offset=16)
    return pixels.reshape(60_000, 784)[:, :780].astype(np.float64) / 255.0


def _w8a() -> Array:
    return 2.0 * _libsvm("w8a/w8a.gz", 300) - 1.0


def _ijcnn1() -> Array:
    return np.clip(_libsvm("ijcnn1/ijcnn1.trn.bz2", 22), -1.0, 1.0)


def _libsvm(path: str, n_features: int) -> Array:
    from sklearn.datasets import load_svmlight_file

    return np.asarray(load_svmlight_file(str(FOLDER / path), n_features=n_features)[0].toarray())
