"""Predict with a saved model on a small installation (a site, a phone). Needs NumPy and safetensors, no compiler.

:class:`Predictor` reads the same folder as :func:`tacitly.load` and gives the same predictions, for ``MixedEffects``
and the methods on a shared basis. It can neither fit nor personalise; ``tacitly.load`` can.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Array, rows_times
from tacitly.data.schema import Schema
from tacitly.data.user_ids import Directory
from tacitly.data.validation import DataError, cells_of, plain_numbers
from tacitly.heads.losses import Loss
from tacitly.methods.mixed_effects.prediction import Rules
from tacitly.private_arrays import private_from_bytes

Arrays = Mapping[str, npt.NDArray[Any]]


class Predictor:
    """A saved model that only predicts.

    ``features`` are the columns that it reads; ``users`` are the users with a personal model in the folder. A published
    folder has no personal models: then all users get the population's prediction.

    >>> import tacitly, tempfile
    >>> X, y, users, *_ = tacitly.datasets.make_shared_subspace(300, 4, 1, 8, random_state=0)
    >>> model = tacitly.MixedEffects(epsilon=8.0).fit(X, y, users)
    >>> with tempfile.TemporaryDirectory() as parent:
    ...     predictor = Predictor(tacitly.save(model, parent + "/model"))
    >>> bool(np.allclose(predictor.predict(X, users), model.predict(X, users), rtol=1e-4, atol=1e-5))
    True
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        from safetensors.numpy import load

        source = Path(folder)
        config = _checked(source)
        public, private = load((source / "billboard.safetensors").read_bytes()), source / "private/heads.safetensors"
        self.users: npt.NDArray[Any] = np.zeros(0, dtype=np.int64)
        heads: Arrays = {}
        if private.is_file():
            self.users, heads = private_from_bytes(private.read_bytes())
        self._schema, self._encoded = _schema(config), [str(name) for name in config["features"]]
        self.features = self._encoded if self._schema is None else list(self._schema.names)
        parameters = config["parameters"]
        self._loss = Loss(parameters.get("loss", "squared"), parameters.get("classes"))
        self._model: _Posteriors | _Basis
        if config["class"] == "MixedEffects":
            self._model = _Posteriors(public, heads, self._loss)
        elif "basis" in public:
            self._model = _Basis(public, heads, self._loss)
        else:
            raise DataError(f"{source} holds a {config['class']}, which Predictor cannot read. Use tacitly.load.")
        self._directory = Directory(self.users) if len(self.users) else None

    def __repr__(self) -> str:
        """Return the columns it reads; it shows no user."""
        return f"Predictor(features={self.features})"

    @np.errstate(all="ignore")  # no warning depends on a private number
    def predict(self, X: Any, users: Any = None, *, return_std: bool = False) -> Any:
        """Predict each row with its user's model; rows of other users, or without users, with the population's model.

        ``X`` has one column for each of ``features``: an array, or, if some are text, a mapping of names to cells or a
        table (pandas, polars, Arrow) with columns in any order. Without a model for a user, predictions are NaN, and
        for classes an error is raised. ``return_std`` is for
        ``MixedEffects`` of numbers and counts.
        """
        rows = self._rows(X)
        if return_std and not isinstance(self._model, _Posteriors):
            raise DataError("return_std needs a MixedEffects model.")
        positions = self._positions(users, len(rows))
        if self._loss.classes is not None:
            return self._model.classes(rows, positions)
        mean, deviation = self._model.numbers(rows, positions)
        return (mean, deviation) if return_std else mean

    @np.errstate(all="ignore")  # no warning depends on a private number
    def predict_proba(self, X: Any, users: Any = None) -> Array:
        """Return one probability per class for each row (loss 'logistic')."""
        if self._loss.name != "logistic":
            raise AttributeError(f"predict_proba needs loss='logistic'. Found loss={self._loss.name!r}.")
        rows = self._rows(X)
        return self._model.probabilities(rows, self._positions(users, len(rows)))

    def _rows(self, X: Any) -> Array:
        table = _named(X)
        text = self._schema is not None and not self._schema.plain
        if table is not None and (text or not table.keys().isdisjoint(self.features)):
            X = table
        if isinstance(X, Mapping):
            missing = [name for name in self.features if name not in X]
            if missing:
                raise DataError(f"X lacks the columns {', '.join(map(repr, missing))}.")
            columns = [cells_of(X[name]) for name in self.features]
            single = [name for name, cells in zip(self.features, columns, strict=True) if cells.ndim != 1]
            if single:
                raise DataError(f"X must map names to lists of cells, even for one row. Column {single[0]!r} is not.")
            if len({len(cells) for cells in columns}) > 1:
                raise DataError("X must map names to lists of cells of equal length.")
            if self._schema is not None:
                return self._schema.encode(columns)
            return np.column_stack([plain_numbers(X[name], f"column {name!r}") for name in self.features])
        if isinstance(X, list) and any(isinstance(row, Mapping) for row in X):
            raise DataError("X must map names to lists of cells. Found a list of rows.")
        rows = plain_numbers(X, "X")
        if rows.ndim != 2 or rows.shape[1] != len(self._encoded):
            raise DataError(f"X must have {len(self._encoded)} columns of numbers. Found shape {rows.shape}.")
        return rows

    def _positions(self, users: Any, rows: int) -> npt.NDArray[np.int64]:
        if users is None or self._directory is None:
            return np.full(rows, -1)
        found = self._directory.find(users)
        if found.shape != (rows,):
            raise DataError(f"users must have one id per row of X ({rows}). Found shape {found.shape}.")
        return found


def _named(X: Any) -> dict[str, Any] | None:
    """Return a table's columns by name, without a library that reads tables; None for anything else."""
    names = getattr(X, "column_names", None)  # of Arrow, whose ``columns`` are cells
    if names is None:
        names = getattr(X, "columns", None)
    return None if names is None or isinstance(X, Mapping) else {str(name): X[name] for name in names}


class _Posteriors:
    """Mixed effects: posteriors around a public prior."""

    def __init__(self, public: Arrays, private: Arrays, loss: Loss) -> None:
        self._rules, self._loss = Rules.stored(public, loss.name), loss
        self._heads = private.get("posteriors", np.zeros((0, 0))).astype(np.float64)

    def numbers(self, rows: Array, positions: npt.NDArray[np.int64]) -> tuple[Array, Array]:
        """Return mean and standard deviation of new observations."""
        return self._rules.in_pieces(self._rules.numbers, rows, self._heads, positions)

    def classes(self, rows: Array, positions: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Return the most probable class of each row."""
        labels: npt.NDArray[Any] = np.asarray(self._loss.classes)[self.probabilities(rows, positions).argmax(axis=1)]
        return labels

    def probabilities(self, rows: Array, positions: npt.NDArray[np.int64]) -> Array:
        """Return one probability per class."""
        return self._rules.in_pieces(self._rules.probabilities, rows, self._heads, positions)


class _Basis:
    """Heads on a public basis, with weights of users' own if the model has them."""

    def __init__(self, public: Arrays, private: Arrays, loss: Loss) -> None:
        self._basis, self._loss = public["basis"], loss
        shape = (loss.columns,) if loss.columns > 1 else ()
        nobody = np.full((1, self._basis.shape[1] + 1, *shape), np.nan)
        population = public["head_mean"][None] if "head_mean" in public else nobody
        heads = private.get("heads", np.zeros((0, self._basis.shape[1], *shape)))
        levels = private.get("intercepts", np.zeros((0, *shape)))
        self._heads = np.concatenate([heads, population[:, :-1]])
        self._levels = np.concatenate([levels, population[:, -1]])
        self._sparse = private.get("sparse_indices"), private.get("sparse_values")
        self._own = private.get("own_weights")

    def numbers(self, rows: Array, positions: npt.NDArray[np.int64]) -> tuple[Array, Array]:
        """Return predictions; the method gives no standard deviations."""
        return self._loss.predict(self._scores(rows, positions)), np.full(len(rows), np.nan)

    def classes(self, rows: Array, positions: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Return the class of each row."""
        scores = self._scores(rows, positions)
        if not np.isfinite(scores).all():
            raise DataError("Found rows of users who have no head, and the model has no population.")
        return self._loss.predict(scores)

    def probabilities(self, rows: Array, positions: npt.NDArray[np.int64]) -> Array:
        """Return one probability per class."""
        scores = self._scores(rows, positions)
        if scores.ndim == 1:
            scores = np.column_stack([np.zeros(len(scores)), scores])
        odds = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.asarray(odds / odds.sum(axis=1, keepdims=True))

    def _scores(self, rows: Array, positions: npt.NDArray[np.int64]) -> Array:
        projected = rows_times(rows, self._basis)  # row by row: no bit of a prediction depends on other users' rows
        scores = np.einsum("nk,nk...->n...", projected, self._heads[positions]) + self._levels[positions]
        known, (places, values) = positions >= 0, self._sparse
        if places is not None and values is not None:
            own = np.take_along_axis(rows[known], places[positions[known]].astype(np.int64), axis=1)
            scores[known] += np.einsum("nk,nk->n", own, values[positions[known]])
        if self._own is not None:
            scores[known] += np.einsum("nd,nd->n", rows[known], self._own[positions[known]])
        return np.asarray(scores)


def _checked(source: Path) -> dict[str, Any]:
    """Return the folder's configuration; raise if a public file is missing or differs from its certificate."""
    try:
        files = json.loads((source / "certificate.json").read_text(encoding="utf-8"))["files"]
        found = {name: (source / name).read_bytes() for name in ("billboard.safetensors", "config.json")}
    except (OSError, ValueError, KeyError, TypeError):
        raise DataError(f"{source} is not a model folder written by tacitly.") from None
    for name, content in found.items():
        if hashlib.sha256(content).hexdigest() != files.get(name):
            raise DataError(
                f"{source / name} does not match its certificate: it was changed after the certificate was written."
            )
    config: dict[str, Any] = json.loads(found["config.json"])
    return config


def _schema(config: Mapping[str, Any]) -> Schema | None:
    stored = config["parameters"].get("schema")
    return Schema.from_dict(stored) if isinstance(stored, Mapping) else None
