"""Checks of the parameters of :class:`~tacitly.TraceRegression`; no row is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tacitly.methods.trace_regression.designs import KINDS

if TYPE_CHECKING:
    from tacitly.methods.trace_regression.estimator import TraceRegression


def check_choices(model: TraceRegression, has_users: bool, has_ids: bool) -> None:
    """Raise an error for unknown values and for combinations that do not work.

    ``has_users``: whether users are known at all; ``has_ids``: whether ids were passed next to the rows.
    """
    choices = {
        "mode": (model.mode, model._modes),
        "unit": (model.unit, ("observation", "user")),
        "privacy": (model.privacy, ("full", "labels")),
        "design": (model.design, KINDS),
        "start": (model.start, ("auto", "one-shot", "power")),
    }
    for name, (value, allowed) in choices.items():
        if value not in allowed:
            raise ValueError(f"{name} must be one of {allowed}. Found {value!r}.")
    if model.unit == "observation" and has_ids:
        raise ValueError("users are for unit='user'. Found users and unit 'observation', which protects one row.")
    if model.start == "power" and model.covariance is not None:
        raise ValueError("a known covariance is for the one-shot start. Found start 'power'.")
    if model.unit == "user" and not has_users:
        raise ValueError("unit='user' needs users: the id of the user each observation belongs to.")
    if model.unit == "user" and (model.privacy == "labels" or model.mode == "paper" or model.covariance is not None):
        raise ValueError("privacy='labels', mode='paper' and covariance are for unit='observation'. Found unit 'user'.")
    if model.unit == "user" and model.start == "one-shot" and model.design != "dense":
        raise ValueError("a one-shot start of users is for dense designs. Use start='power' (or 'auto').")
    if model.mode == "paper" and np.ndim(model.covariance) == 3:
        raise ValueError("a covariance per observation is for mode 'auto'. Found mode 'paper'.")
    if model.covariance is not None and model.design != "dense":
        raise ValueError(f"covariance is for design 'dense'. Found design {model.design!r}.")
    if isinstance(model.center, str) and model.center != "auto":
        raise ValueError(f"center must be 'auto', None or numbers of shape (d1, d2). Found {model.center!r}.")
    other = model.design != "dense" or model.unit == "user" or model.covariance is not None or model.mode == "paper"
    if other and model.center is not None and not isinstance(model.center, str):
        raise ValueError("center is for design 'dense', unit 'observation', mode 'auto' and no covariance.")
    if model.max_observations is not None and model.max_observations < 1:
        raise ValueError(f"max_observations must be at least 1. Found {model.max_observations!r}.")
