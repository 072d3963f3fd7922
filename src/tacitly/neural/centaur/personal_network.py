"""One user's network: the public body with that user's private head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Array
from tacitly.data.validation import plain_numbers


@dataclass(frozen=True)
class PersonalNetwork:
    """The public body with one user's head; ``held`` marks the user's classes. Private to that user."""

    features: Callable[[npt.NDArray[np.float32]], Array]
    answers: Callable[[Array, tuple[Array, Array]], npt.NDArray[Any]]
    chances: Callable[[Array, tuple[Array, Array]], Array]
    head: Array
    held: Array

    def predict(self, X: npt.ArrayLike) -> npt.NDArray[Any]:
        """Return predictions for this user's rows."""
        return self.answers(self.features(plain_numbers(X, "X", np.float32)), (self.head, self.held))

    def predict_proba(self, X: npt.ArrayLike) -> Array:
        """Return the probability of each class for this user's rows; zero for classes that the user does not have."""
        return self.chances(self.features(plain_numbers(X, "X", np.float32)), (self.head, self.held))
