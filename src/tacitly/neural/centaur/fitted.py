"""A fitted network: a public body and one private head per user; prediction, new users, saving."""

from __future__ import annotations

import copy
import itertools
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from tacitly.arrays import Array, Offsets
from tacitly.data.cohort import Cohort
from tacitly.data.validation import plain_numbers
from tacitly.heads.losses import Loss
from tacitly.methods.base import HomeWork, PrivateModel
from tacitly.methods.personal import PersonalModel, Positions, by_user, with_type
from tacitly.neural.centaur.heads import HeadMaker, check_labels
from tacitly.neural.centaur.personal_network import PersonalNetwork
from tacitly.neural.engine.flat import Flat
from tacitly.neural.engine.home import LAST_ROUND, key_of
from tacitly.neural.engine.layers import check_layers
from tacitly.neural.engine.local_training import LocalTraining
from tacitly.neural.engine.module_properties import n_outputs
from tacitly.neural.engine.public_prefix import apply_prefix, split_body
from tacitly.neural.engine.windows import ForwardPass


@dataclass(eq=False, repr=False)
class ModuleParameters:
    """The modules, first in the signature: rows → features, and features → scores."""

    body: nn.Module
    head: nn.Module


class FittedNetwork(PersonalModel[PersonalNetwork], PrivateModel, ModuleParameters):
    """Methods of networks that are available once ``body_``, ``public_head_``, ``heads_`` and ``held_`` are set."""

    loss: str
    device: str
    trust_custom_layers: bool
    augment: Callable[[Tensor], Tensor] | None
    body_: nn.Module
    public_head_: nn.Module
    heads_: Array
    held_: Array
    _billboard: dict[str, npt.NDArray[Any]]

    _learned: ClassVar[str] = "body_"
    _row_type: ClassVar[npt.DTypeLike] = np.float32

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's tags: a classifier or a regressor, by the loss."""
        return with_type(super().__sklearn_tags__(), classifies=self.loss == "classes")

    def public_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return parameters and buffers of the body, in the order of the modules, and of the public head.

        They are copied when they become public: before any head is fitted or anything is predicted.
        """
        self._check_fitted()
        return {name: value.copy() for name, value in self._billboard.items()}

    def take_public_arrays(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Set body and public head; no user has a head then."""
        body, head = self._modules_to_fill()
        self._check_layers(body, head)
        parts = split_body(body, self.n_features_in_, whole=self.augment is not None)
        self.body_ = nn.Sequential(*(copy.deepcopy(part) for part in parts)).eval()
        self.public_head_ = copy.deepcopy(head).eval()
        for part, module in (("body", self.body_), ("head", self.public_head_)):
            names = list(module.state_dict())
            given = [tuple(value.shape) for value in module.state_dict().values()]
            stored = [f"{part}.{i}" for i in range(sum(name.startswith(f"{part}.") for name in arrays))]
            if given != [arrays[name].shape for name in stored]:
                raise ValueError(
                    f"{part} must have the architecture that was saved, with parameters of shapes "
                    f"{', '.join(str(arrays[name].shape) for name in stored)}. Found {', '.join(map(str, given))}."
                )
            values = [torch.as_tensor(np.array(arrays[name])) for name in stored]
            module.load_state_dict(dict(zip(names, values, strict=True)))
        self._billboard = state_arrays(self.body_, self.public_head_)
        self.heads_, self.held_ = np.zeros((0, self._maker().size)), np.zeros((0, self._maker().classes))
        self.users_ = np.zeros(0, dtype=np.int64)

    def private_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return heads and the classes in their users' rows; empty if they stayed with their users."""
        return {"heads": self.heads_, "held": self.held_} if len(self.users_) else {}

    def take_private_arrays(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Set the heads."""
        self.heads_, self.held_ = arrays["heads"], arrays["held"]

    def with_heads_of(self, cohort: Cohort) -> Self:
        """Return the same public model with the heads of these users instead."""
        self._check_fitted()
        refitted, given = copy.copy(self), self._cohort(cohort, None, None)
        prefix: nn.Module = self.body_[0]  # type: ignore[index]
        asked = self._with_inner_targets(apply_prefix(prefix, given, self._training().rows, self._torch_device()))
        refitted._take_heads(self._fit_heads(asked.X, np.asarray(asked.y), asked.offsets))
        refitted.users_ = given.users
        return refitted

    def _with_inner_targets(self, cohort: Cohort) -> Cohort:
        """Return the cohort with targets as the network sees them: here they are unchanged."""
        return cohort

    @property
    def folder_class(self) -> str:
        """The name of this kind of model in a model folder."""
        return f"neural.{type(self).__name__}"

    def folder_parameters(self) -> dict[str, Any]:
        """Return the parameters stored in a model folder; modules are code and are left out."""
        kept = {key: value for key, value in super().folder_parameters().items() if key not in ("body", "head")}
        return {**kept, "augment": self.augment is not None}

    def _modules(self, n_features: int) -> tuple[nn.Module, nn.Module]:
        """Return the initial body and head, for rows with this number of features."""
        return self.body, self.head

    def _modules_to_fill(self) -> tuple[nn.Module, nn.Module]:
        """Return body and head whose values :meth:`take_public_arrays` will set; their initial values do not matter."""
        return self._modules(self.n_features_in_)

    @abstractmethod
    def _training(self) -> LocalTraining:
        """Return the settings for fitting heads."""

    def _loss(self) -> Loss:
        return Loss("logistic", range(max(2, n_outputs(self.head)))) if self.loss == "classes" else Loss()

    def _encoded(self, y: npt.ArrayLike) -> Array:
        return plain_numbers(y, "y")

    def _predictions(self, rows: npt.NDArray[Any], positions: Positions) -> npt.NDArray[Any]:
        predicted = np.zeros(len(rows), dtype=np.int64 if self.loss == "classes" else np.float64)
        maker, seen = self._maker(), ForwardPass(self.body_, self._torch_device())
        for user, mine in by_user(positions):
            predicted[mine] = maker.safe_answers(partial(seen, rows[mine]), (self.heads_[user], self.held_[user]))
        return predicted

    def predict_proba(self, X: npt.ArrayLike, users: npt.ArrayLike) -> Array:
        """Return the probability of each class for each row; zero for classes that its user's rows do not contain."""
        if self.loss != "classes":
            raise AttributeError(f"predict_proba needs loss='classes'. Found loss={self.loss!r}.")
        rows, positions = self._rows_and_positions(X, users)
        maker, seen = self._maker(), ForwardPass(self.body_, self._torch_device())
        found = np.zeros((len(rows), maker.classes))
        for user, mine in by_user(positions):
            found[mine] = maker.safe_probabilities(partial(seen, rows[mine]), (self.heads_[user], self.held_[user]))
        return found

    def _personal_model(self, rows: npt.NDArray[Any], targets: Array) -> PersonalNetwork:
        maker = self._maker()
        if self.loss == "classes":
            check_labels(targets, maker.classes)
        return self.with_head(*maker.fit(*self._seen(rows, targets, self._features)))

    def with_head(self, head: Array, held: Array) -> PersonalNetwork:
        """Return the public body with one user's head; ``held`` marks the user's classes."""
        maker = self._maker()
        return PersonalNetwork(self._features, maker.answers, maker.probabilities, head, held)

    def _rows(self, X: npt.ArrayLike) -> npt.NDArray[Any]:
        return super()._rows(flat_rows(X))

    def _features(self, rows: npt.NDArray[np.float32]) -> Array:
        """Return one user's rows after the learned body."""
        return np.asarray(ForwardPass(self.body_, self._torch_device())(rows), dtype=np.float64)

    def _torch_device(self) -> torch.device:
        return torch.device("cuda" if self.device != "cpu" and torch.cuda.is_available() else "cpu")

    def _check_layers(self, body: nn.Module, head: nn.Module) -> None:
        cuda = self._torch_device().type == "cuda"
        check_layers(body, head, cuda=cuda, trust_custom_layers=self.trust_custom_layers)

    def _maker(self) -> HeadMaker:
        return HeadMaker(self.public_head_, self._training(), by_steps=self.mode == "paper")

    def _fit_heads(self, X: npt.NDArray[Any], y: npt.NDArray[Any], offsets: Offsets) -> Array:
        """Return the heads of a block of users, one row per user, each from that user's rows and own state only."""
        maker, features = self._maker(), ForwardPass(self.body_[1], self._torch_device())  # type: ignore[index]
        pairs = list(itertools.pairwise(offsets.tolist()))
        mine = [partial(self._seen, np.asarray(X[a:b]), y[a:b], features) for a, b in pairs]
        warm = [self._warm_head(X[a:b], y[a:b]) for a, b in pairs]
        return np.array([np.concatenate(maker.safely(seen, own)) for seen, own in zip(mine, warm, strict=True)])

    def _warm_head(self, X: npt.NDArray[Any], y: npt.NDArray[Any]) -> Tensor | None:
        """Return the head that a user kept from the rounds, if any."""
        home, update = self.__dict__.get("_at_home", (None, None))
        if home is None or not home.keeps or (key := key_of(X, y)) is None:
            return None
        kept: Tensor = update.head_in(home.start([key], LAST_ROUND)[0], Flat(self.public_head_).start)
        return kept

    def _home_work(self) -> HomeWork:
        return self._fit_heads

    def _take_heads(self, heads: Array) -> None:
        self.heads_, self.held_ = np.split(heads, [self._maker().size], axis=1)
        self.__dict__.pop("_at_home", None)  # users' local state between rounds is not part of the model

    def _seen(
        self, rows: npt.NDArray[Any], targets: npt.NDArray[Any], features: Callable[[npt.NDArray[Any]], Array]
    ) -> tuple[Array, npt.NDArray[Any], int]:
        """Return features and targets of a user's rows, followed by those of their augmented views; number of views."""
        seen = features(rows)
        if self.augment is None:
            return seen, targets, 1
        others = features(self.augment(torch.tensor(rows, dtype=torch.float32)).numpy())
        views = 1 + len(others) // max(1, len(rows))
        return np.concatenate([seen, others]), np.tile(targets, views), views


def flat_rows(X: Any) -> Any:
    """Return images of any shape as flat rows; other inputs are unchanged.

    >>> flat_rows(np.zeros((5, 3, 8, 8))).shape
    (5, 192)
    """
    shape: tuple[int, ...] = getattr(X, "shape", ())
    return np.asarray(X).reshape(shape[0], -1) if len(shape) > 2 else X


def state_arrays(body: nn.Module, head: nn.Module) -> dict[str, npt.NDArray[Any]]:
    """Return copies of all parameters and buffers, named by module and position."""
    return {
        f"{part}.{i}": value.detach().cpu().numpy().copy()
        for part, module in (("body", body), ("head", head))
        for i, value in enumerate(module.state_dict().values())
    }
