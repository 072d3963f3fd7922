"""Checks of FedPower's parameters: which can be combined, and which have no effect."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tacitly.methods.fedpower.power import DECAYS

if TYPE_CHECKING:
    from tacitly.methods.fedpower.estimator import FedPower

_IDLE = {
    "mode='paper'": ("route", "trust", "feature_range", "sampling_rate"),
    "route='gram'": ("rounds", "decay", "iteration_rank", "alignment"),
    "route='power'": ("decay", "alignment"),
}
"""Parameters without effect on a route. Route "auto" may choose a route on which they have an effect."""


def check_choices(model: FedPower) -> None:
    """Raise an error for parameters that are wrong, cannot be combined, or have no effect."""
    if model.unit not in ("auto", "row", "user"):
        raise ValueError(f"unit must be 'row', 'user' or 'auto'. Found {model.unit!r}.")
    if model.mode == "paper" and model.n_components == "auto":
        raise ValueError("paper mode has no way to choose n_components. Give a number.")
    if model.mode == "paper" and model.center:
        raise ValueError("paper mode does not centre. Set center=False.")
    if model.noise_by != "central" and (model.participants is not None or model.sampling_rate < 1):
        raise ValueError(f"participants and sampling_rate need trust 'central'. Found {model.noise_by!r}.")
    printed = {"iterations": None, "epsilon_central": None, "per_round": False}
    if model.mode != "paper" and (extra := [name for name, value in printed.items() if getattr(model, name) != value]):
        raise ValueError(f"{extra[0]} is for mode='paper'. Leave it out: a sound run has one budget and rounds.")
    where = "mode='paper'" if model.mode == "paper" else f"route={model.route!r}"
    if idle := [name for name in _IDLE.get(where, ()) if getattr(model, name) != getattr(type(model), name)]:
        raise ValueError(f"{idle[0]} has no effect with {where}. Found {getattr(model, idle[0])!r}: leave it out.")
    if model.mode == "paper" and model.unit == "row":
        raise ValueError("paper mode protects devices, the users. Leave out unit='row'.")
    if model.epsilon_central is not None and not model.epsilon_central > 0:
        raise ValueError(f"epsilon_central must be positive. Found {model.epsilon_central!r}.")
    if model.decay not in DECAYS:
        raise ValueError(f"decay must be one of {DECAYS}. Found {model.decay!r}.")
    if model.scheme not in (1, 2):
        raise ValueError(f"scheme must be 1 or 2. Found {model.scheme!r}.")
    if model.scheme == 1 and model.mode != "paper":
        raise ValueError(
            "scheme 1 draws devices with replacement, and a device that is drawn twice pays twice: it is for paper "
            "mode only. Use scheme=2, where every device answers once per round."
        )
