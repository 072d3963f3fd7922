"""Read the arguments of ``fit``: the users with their rows and targets."""

from __future__ import annotations

from typing import Any

import numpy as np

from tacitly.data.cohort import Cohort


def cohort_of(X: Any, y: Any, users: Any) -> Cohort:
    """Return a cohort with targets; arrays are converted to float32."""
    if isinstance(X, Cohort):
        cohort = X
    elif y is None or users is None:
        raise ValueError("fit needs y and users next to X: the target and the user id of every row.")
    else:
        cohort = Cohort.from_arrays(X, y, users, dtype=np.float32)
    if cohort.y is None:
        raise ValueError("the cohort has no target. Build it with a target column.")
    return cohort
