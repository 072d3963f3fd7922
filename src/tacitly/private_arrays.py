"""The content of ``private/heads.safetensors``: users' ids, and arrays with one row for each.

A recommender also stores which items its users rated: ``rated`` contains the items of all users, one user after
another, and user i has entries bounds[i] to bounds[i + 1].
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np


def private_to_bytes(users: np.ndarray[Any, Any], arrays: Mapping[str, np.ndarray[Any, Any]]) -> bytes:
    """Return the content of ``private/heads.safetensors``: ids, and arrays with one row for each."""
    from safetensors.numpy import save as to_bytes

    ids, kind = _ids_as_bytes(users)
    tensors = {name: np.ascontiguousarray(array) for name, array in arrays.items()} | {"users": ids}
    return bytes(to_bytes(tensors, metadata={"users": kind}))


def private_from_bytes(data: bytes) -> tuple[np.ndarray[Any, Any], dict[str, np.ndarray[Any, Any]]]:
    """Read the output of :func:`private_to_bytes`."""
    from safetensors.numpy import load as from_bytes

    tensors = from_bytes(data)
    return _ids_from_bytes(tensors.pop("users"), _metadata(data)["users"]), tensors


def of_users(
    arrays: Mapping[str, np.ndarray[Any, Any]], chosen: np.ndarray[Any, Any]
) -> dict[str, np.ndarray[Any, Any]]:
    """Return the arrays of the chosen users only.

    >>> kept = of_users({"rated": np.array([7, 8, 9]), "bounds": np.array([0, 1, 3])}, np.array([False, True]))
    >>> kept["rated"], kept["bounds"]
    (array([8, 9]), array([0, 2]))
    """
    ragged: dict[str, np.ndarray[Any, Any]] = {}
    if "bounds" in arrays:
        counts = np.diff(arrays["bounds"])
        ragged["rated"] = arrays["rated"][np.repeat(chosen, counts)]
        ragged["bounds"] = np.append(0, np.cumsum(counts[chosen]))
    return {name: array[chosen] for name, array in arrays.items() if name not in ragged} | ragged


def _ids_as_bytes(users: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], str]:
    """Return ids as a tensor: numbers unchanged, text as fixed-width UTF-8."""
    if users.dtype.kind in "iu":
        return np.ascontiguousarray(users), "numbers"
    encoded = np.char.encode(users.astype(str), "utf-8")
    width = max(encoded.dtype.itemsize, 1)
    return np.ascontiguousarray(encoded).view(np.uint8).reshape(len(users), width), "text"


def _ids_from_bytes(ids: np.ndarray[Any, Any], kind: str) -> np.ndarray[Any, Any]:
    if kind == "numbers":
        return ids
    return np.char.decode(np.ascontiguousarray(ids).view(f"S{ids.shape[1]}").ravel(), "utf-8")


def _metadata(data: bytes) -> dict[str, str]:
    size = int.from_bytes(data[:8], "little")
    metadata: dict[str, str] = json.loads(data[8 : 8 + size])["__metadata__"]
    return metadata
