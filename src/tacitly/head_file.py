"""Save and load one user's head, as ``tacitly personalize`` writes it: JSON that only its owner can read."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from tacitly.methods.mixed_effects.estimator import MixedEffects, Posterior
from tacitly.methods.shared_basis import Head, SharedBasisModel
from tacitly.model_folder import ModelError
from tacitly.portable import write_private


def save_head(head: Any, path: str | os.PathLike[str], model: Any = None) -> None:
    """Write one user's head to a file only its owner can read; it states which saved ``model`` it was fitted for."""
    target = Path(path)
    if target.exists():
        raise ModelError(f"{target} exists already. Choose another file, or remove it.")
    content = head_content(head)
    if (origin := _origin(model)) is not None:
        content["model"] = origin
    write_private(target, (json.dumps(content) + "\n").encode())


def head_content(head: Any) -> dict[str, Any]:
    """Return a head as plain data: a posterior, a network's head, or weights, intercept and own coordinates."""
    if isinstance(head, Posterior):
        return {"posterior": head.numbers.tolist()}
    if hasattr(head, "held"):  # a network's head, whose class needs PyTorch
        return {"head": head.head.tolist(), "held": head.held.tolist()}
    content: dict[str, Any] = {"weights": head.weights.tolist(), "intercept": np.asarray(head.intercept).tolist()}
    if head.values.size:
        content |= {"indices": head.indices.tolist(), "values": head.values.tolist()}
    return content


def load_head(path: str | os.PathLike[str], model: Any) -> Any:
    """Read a head written for ``model``; raise if it was written for another one, also if that has the same shape."""
    _check_origin(path, model)
    if hasattr(model, "with_head"):
        return _load_network_head(path, model)
    return _load_posterior(path, model) if isinstance(model, MixedEffects) else _load_weights(path, model)


def _origin(model: Any) -> str | None:
    """Return the hash of a saved model's billboard, which its published copies share; None if it was not saved."""
    certificate = getattr(model, "certificate_", None)
    return None if certificate is None else certificate.files.get("billboard.safetensors")


def _check_origin(path: str | os.PathLike[str], model: Any) -> None:
    content = None
    with suppress(ValueError):  # not JSON: the loaders below say what was expected
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    stated, ours = content.get("model") if isinstance(content, dict) else None, _origin(model)
    if stated is not None and ours is not None and stated != ours:
        raise ModelError(f"{path} was fitted for another model. Fit it again: tacitly personalize.")


def _load_posterior(path: str | os.PathLike[str], model: MixedEffects) -> Posterior:
    try:
        numbers = np.array(json.loads(Path(path).read_text(encoding="utf-8"))["posterior"], dtype=np.float64)
    except (KeyError, TypeError, AttributeError, OverflowError, ValueError):
        raise ModelError(f"{path} is not a head written by 'tacitly personalize' for a MixedEffects model.") from None
    if numbers.shape != model.heads_.shape[1:]:
        raise _of_another_model(path, numbers.size, model.heads_.shape[1])
    return Posterior(model, numbers)


def _load_network_head(path: str | os.PathLike[str], model: Any) -> Any:
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        head, held = (np.array(content[name], dtype=np.float64) for name in ("head", "held"))
    except (KeyError, TypeError, AttributeError, OverflowError, ValueError):
        raise ModelError(f"{path} is not a head written by 'tacitly personalize' for a network.") from None
    if head.shape != model.heads_.shape[1:] or held.shape != model.held_.shape[1:]:
        raise _of_another_model(path, head.size, model.heads_.shape[1])
    return model.with_head(head, held)


def _of_another_model(path: str | os.PathLike[str], found: int, expected: int) -> ModelError:
    return ModelError(
        f"{path} has {found} numbers; this model's heads have {expected}. Was the head fitted for another model?"
    )


def _load_weights(path: str | os.PathLike[str], model: SharedBasisModel) -> Head:
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        weights = np.array(content["weights"], dtype=np.float64)
        intercept = np.array(content["intercept"], dtype=np.float64)
        indices = np.array(content.get("indices", []), dtype=np.int64)
        values = np.array(content.get("values", []), dtype=np.float64)
    except (KeyError, TypeError, AttributeError, OverflowError, ValueError):
        raise ModelError(f"{path} is not a head written by 'tacitly personalize'.") from None
    if weights.shape != model.heads_.shape[1:] or intercept.shape != model.intercepts_.shape[1:]:
        raise ModelError(
            f"{path} has weights of shape {weights.shape}; this model's heads have {model.heads_.shape[1:]}. "
            "Was the head fitted for another model?"
        )
    features = len(model.basis_)
    if indices.shape != values.shape or indices.ndim != 1 or not ((indices >= 0) & (indices < features)).all():
        raise ModelError(f"{path} has coordinates that this model's {features} features do not have.")
    level = intercept if intercept.ndim else float(intercept)
    return Head(weights, level, model.basis_, model._loss(), indices, values)
