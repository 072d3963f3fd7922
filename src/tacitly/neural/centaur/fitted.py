"""A fitted network: a public body, a private head a user; prediction, new users, what is saved and what is not."""

from __future__ import annotations

import copy
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from tacitly.arrays import Array, Offsets
from tacitly.data.cohort import Cohort
from tacitly.data.user_ids import Directory
from tacitly.data.validation import DataError
from tacitly.methods.base import PrivateModel
from tacitly.neural.centaur.heads import HeadMaker, check_labels
from tacitly.neural.centaur.personal_network import PersonalNetwork
from tacitly.neural.engine.layers import check_layers
from tacitly.neural.engine.update import LocalTraining
from tacitly.neural.engine.windows import ForwardPass


class FittedNetwork(PrivateModel, ABC):
    """What networks can do once ``body_``, ``public_head_``, ``heads_`` and ``held_`` are there."""

    body: nn.Module
    head: nn.Module
    loss: str
    device: str
    trust_custom_layers: bool
    augment: Callable[[Tensor], Tensor] | None
    body_: nn.Module
    public_head_: nn.Module
    heads_: Array
    held_: Array
    _billboard: dict[str, npt.NDArray[Any]]

    def predict(self, X: npt.ArrayLike, users: npt.ArrayLike) -> npt.NDArray[Any]:
        """Predict each row with the head of its user."""
        rows, ids = self._rows(X), np.asarray(users)
        if ids.shape != (len(rows),):
            raise DataError(f"users must have one id a row of X ({len(rows)}). Found shape {ids.shape}.")
        places = Directory(self.users_).find(ids)
        if unknown := int(np.count_nonzero(places < 0)):
            raise DataError(
                f"{unknown} of {len(rows)} rows belong to users who have no head. "
                "Give a new user one with personalize(X, y), from that user's own rows."
            )
        out = np.zeros(len(rows), dtype=np.int64 if self.loss == "classes" else np.float64)
        order = np.argsort(places, kind="stable")
        maker, seen = self._maker(), ForwardPass(self.body_, self._population())
        for mine in np.split(order, np.flatnonzero(np.diff(places[order])) + 1):
            if len(mine):
                place = places[mine[0]]
                out[mine] = maker.safe_answers(partial(seen, rows[mine]), (self.heads_[place], self.held_[place]))
        return out

    def score(self, X: npt.ArrayLike, y: npt.ArrayLike, users: npt.ArrayLike) -> float:
        """Share of rows predicted right (or R²). Computed from private data: not for publication."""
        target, found = np.asarray(y, dtype=np.float64), self.predict(X, users)
        if self.loss == "classes":
            return float(np.mean(found == target))
        spread = float(np.sum((target - target.mean()) ** 2))
        return 1.0 - float(np.sum((target - found) ** 2)) / spread if spread > 0 else 0.0

    def personalize(self, X: npt.ArrayLike, y: npt.ArrayLike) -> PersonalNetwork:
        """Fit a head for a user who was not there at training. Costs nobody any privacy: nothing of it is released."""
        rows, targets = self._rows(X), np.asarray(y, dtype=np.float64)
        if targets.shape != (len(rows),):
            raise DataError(f"y must have one value a row of X ({len(rows)}). Found shape {targets.shape}.")
        if not (np.isfinite(rows).all() and np.isfinite(targets).all()):
            raise DataError("X and y must be finite numbers. Found missing or infinite values.")
        maker = self._maker()
        if self.loss == "classes":
            check_labels(targets, maker.classes)
        return PersonalNetwork(self._features, maker.answers, *maker.fit(*self._seen(rows, targets, self._features)))

    def public_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return parameters and buffers of the body, in the order of the modules, and of the public head.

        As they were when they became public: before any head was fitted, or anything predicted.
        """
        return {name: value.copy() for name, value in self._billboard.items()}

    def take_public_arrays(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Set body and public head; nobody has a head of their own yet."""
        cuda = self.device != "cpu" and torch.cuda.is_available()
        check_layers(self.body, self.head, cuda=cuda, trust_custom_layers=self.trust_custom_layers)
        self.body_, self.public_head_ = copy.deepcopy(self.body).eval(), copy.deepcopy(self.head).eval()
        for part, module in (("body", self.body_), ("head", self.public_head_)):
            names = list(module.state_dict())
            values = [torch.as_tensor(np.array(arrays[f"{part}.{place}"])) for place in range(len(names))]
            module.load_state_dict(dict(zip(names, values, strict=True)))
        self._billboard = self._public_numbers()
        self.heads_, self.held_ = np.zeros((0, self._maker().size)), np.zeros((0, self._maker().classes))
        self.users_ = np.zeros(0, dtype=np.int64)

    def private_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the heads, and which classes their users hold."""
        return {"heads": self.heads_, "held": self.held_}

    def take_private_arrays(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Set the heads."""
        self.heads_, self.held_ = arrays["heads"], arrays["held"]

    @property
    def folder_class(self) -> str:
        """What a model folder calls this kind of model."""
        return f"neural.{type(self).__name__}"

    def folder_parameters(self) -> dict[str, Any]:
        """Return the parameters a model folder keeps; modules are code, and stay outside."""
        kept = {key: value for key, value in super().folder_parameters().items() if key not in ("body", "head")}
        return {**kept, "augment": self.augment is not None}

    @abstractmethod
    def _training(self) -> LocalTraining:
        """Return how heads are fitted."""

    def _features(self, rows: npt.NDArray[np.float32]) -> Array:
        """One user's rows after the learned body."""
        return np.asarray(ForwardPass(self.body_, self._population())(rows), dtype=np.float64)

    def _population(self) -> torch.device:
        return torch.device("cuda" if self.device != "cpu" and torch.cuda.is_available() else "cpu")

    def _public_numbers(self) -> dict[str, npt.NDArray[Any]]:
        return {
            f"{part}.{place}": value.detach().cpu().numpy().copy()
            for part, module in (("body", self.body_), ("head", self.public_head_))
            for place, value in enumerate(module.state_dict().values())
        }

    def _maker(self) -> HeadMaker:
        return HeadMaker(self.public_head_, self._training())

    def _fit_heads(self, X: npt.NDArray[Any], y: npt.NDArray[Any], offsets: Offsets) -> Array:
        """Heads of a block of users, each from its own rows alone; a row a user."""
        maker, features = self._maker(), ForwardPass(self.body_[1], torch.device("cpu"))  # type: ignore[index]
        pairs = itertools.pairwise(offsets.tolist())
        mine = [partial(self._seen, np.asarray(X[a:b]), y[a:b], features) for a, b in pairs]
        return np.array([np.concatenate(maker.safely(seen)) for seen in mine])

    def _take_heads(self, table: Array) -> None:
        self.heads_, self.held_ = np.split(table, [self._maker().size], axis=1)

    def _seen(
        self, rows: npt.NDArray[Any], targets: npt.NDArray[Any], features: Callable[[npt.NDArray[Any]], Array]
    ) -> tuple[Array, npt.NDArray[Any]]:
        """Return features and targets of a user's rows, and of other views of them, where there are such."""
        seen = features(rows)
        if self.augment is None:
            return seen, targets
        views = self.augment(torch.tensor(rows, dtype=torch.float32)).numpy()
        return np.concatenate([seen, features(views)]), np.concatenate([targets, targets])

    def _rows(self, X: npt.ArrayLike) -> npt.NDArray[np.float32]:
        rows = np.asarray(X, dtype=np.float32)
        if rows.ndim != 2 or rows.shape[1] != self.n_features_in_:
            raise DataError(f"X must have {self.n_features_in_} columns. Found shape {rows.shape}.")
        return rows

    def _know(self, cohort: Cohort) -> None:
        self.users_, self.n_features_in_ = cohort.users, cohort.n_features
        self.feature_names_in_ = np.array(cohort.feature_names, dtype=str)
        self.target_name_ = cohort.target_name
