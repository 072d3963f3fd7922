"""Checks of a network's parameters, all of which are public, before any rows are read or budget is spent."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from tacitly.neural.centaur.estimator import Centaur

WHOLE = {
    "rounds": 1,
    "local_steps": 1,
    "head_steps": 0,
    "rows_per_user": 1,
    "batch_rows": 1,
    "chunk": 1,
    "threads": 1,
}
"""Parameters that are counts, and the minimum of each."""

STEPS = ("head_steps", "head_rate", "head_momentum", "head_decay")


def check_numbers(model: Centaur) -> None:
    """Raise an error that names the parameter if a number is invalid."""
    if str(model.device).partition(":")[0] not in ("auto", "cpu", "cuda"):
        raise ValueError(f"device must be 'auto', 'cpu' or 'cuda'. Found {model.device!r}.")
    if str(model.device).startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"PyTorch finds no GPU here. Found device={model.device!r}: use 'auto' or 'cpu'.")
    for name, least in WHOLE.items():
        value = getattr(model, name)
        if value is None and name in ("batch_rows", "chunk", "threads"):
            continue
        if not _is_whole(value) or value < least:
            raise ValueError(f"{name} must be a whole number, at least {least}. Found {value!r}.")
    for name in ("step", "local_rate", "head_rate"):
        value = model._setting(name) if name == "step" else getattr(model, name)
        if not _is_positive(value):
            raise ValueError(f"{name} must be a number, positive and finite. Found {value!r}.")
    if model.clip is not None and model.clip != "auto" and not _is_positive(model.clip):
        raise ValueError(f"clip must be None, 'auto' or a number, positive and finite. Found {model.clip!r}.")
    if model.clip == "auto" and model.per_layer:
        raise ValueError("clip='auto' measures whole updates. Give a number, or per_layer=False.")
    if not 0 < model.sampling_rate <= 1:
        raise ValueError(f"sampling_rate must lie in (0, 1]. Found {model.sampling_rate!r}.")
    if model.clip == "auto" and not 0 < model.clip_share < 1:
        raise ValueError(f"clip_share must lie between 0 and 1. Found {model.clip_share!r}.")


def check_without_effect(model: Centaur) -> None:
    """Raise on parameters that would be ignored, and on warm heads together with sampling."""
    if model.mode == "paper":
        if isinstance(model.clip, str) or model.clip is None:
            raise ValueError(f"mode='paper' clips updates to a number, such as clip=0.01. Found {model.clip!r}.")
        for name in ("average", "cross_fit", "per_layer"):
            if getattr(model, name):
                raise ValueError(f"mode='paper' has no {name}. Leave it out, or use mode='auto'.")
    if model.clip != "auto" and _given(model, "clip_share"):
        raise ValueError(f"clip_share is paid for clip='auto' only. Found clip={model.clip!r}: leave clip_share out.")
    _check_heads(model)
    if model.sampling_rate < 1.0 and model._fits_heads and model._setting("warm_heads"):
        raise ValueError(
            "warm heads contain traces of the rounds in which their user took part, so coins would not be independent "
            f"between rounds. Use warm_heads=False, or sampling_rate=1. Found sampling_rate={model.sampling_rate!r}."
        )


def _check_heads(model: Centaur) -> None:
    """Raise on parameters of heads if no head is fitted in rounds, or none by steps."""
    in_rounds = model._steps_heads and model.head_steps > 0
    reason = "head_steps=0" if model._steps_heads else type(model).__name__
    said = f"no head is fitted in rounds with {reason}. Leave it out."
    if model.warm_heads and not (in_rounds or (model._fits_heads and not model._steps_heads)):
        raise ValueError(f"warm_heads has no effect: {said}")
    if model.cross_fit and not (in_rounds and model._crosses_heads):
        raise ValueError(f"cross_fit has no effect with {type(model).__name__ if in_rounds else reason}. Leave it out.")
    given = [name for name in STEPS if (name != "head_steps" or not model._steps_heads) and _given(model, name)]
    if given and model._learns and not in_rounds and model.mode != "paper" and _is_closed_form(model.head):
        raise ValueError(f"{given[0]} has no effect: linear heads are fitted in closed form at the end, and {said}")


def _given(model: Centaur, name: str) -> bool:
    return bool(getattr(model, name) != getattr(type(model), name))


def _is_closed_form(head: nn.Module) -> bool:
    return type(head) is nn.Linear and head.bias is not None


def _is_whole(value: Any) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool)


def _is_positive(value: Any) -> bool:
    return not isinstance(value, str | bool) and hasattr(value, "__float__") and math.isfinite(value) and value > 0
