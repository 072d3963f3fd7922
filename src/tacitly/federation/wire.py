"""Queries, and what users do at home, as bytes: a name and numbers. No code travels, and nothing is unpickled.

A message is a line of JSON and then the arrays it speaks of, one after the other. Only classes that stand in
:data:`KNOWN` are made from it, only from exactly their public fields, and each field must be of the type its class
declares. Whatever else arrives raises :class:`WireError` before any number is believed; sizes are bounded first.

>>> from tacitly.methods.shared.whitening import FeatureMoment
>>> decode(encode(FeatureMoment(3, centered=True)))
FeatureMoment(n_features=3, centered=True)
"""

from __future__ import annotations

import dataclasses
import json
import math
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from tacitly.privacy.guarantee import Unit

KNOWN = {
    "BasisGradient": "tacitly.methods.fedrep.as_printed",
    "BasisStep": "tacitly.methods.fedrep.queries",
    "Centre": "tacitly.methods.trace_regression.designs",
    "CentreVote": "tacitly.methods.fedpower.gram",
    "ClassVote": "tacitly.methods.shared.direction_votes",
    "ClippedGram": "tacitly.methods.low_rank_sparse.as_printed",
    "ClippedRight": "tacitly.methods.low_rank_sparse.as_printed",
    "Clips": "tacitly.methods.low_rank_sparse.as_printed",
    "Design": "tacitly.methods.trace_regression.designs",
    "DesignEnergy": "tacitly.methods.trace_regression.queries",
    "DeviceStep": "tacitly.methods.fedpower.power",
    "DirectionVote": "tacitly.methods.shared.direction_votes",
    "FeatureMoment": "tacitly.methods.shared.whitening",
    "HeadGradient": "tacitly.methods.centaur.as_printed",
    "LabelSum": "tacitly.methods.trace_regression.centering",
    "LabelledSum": "tacitly.methods.trace_regression.queries",
    "Loss": "tacitly.heads.losses",
    "LossHeads": "tacitly.heads.glm",
    "LossStep": "tacitly.methods.fedrep.queries",
    "MarginLosses": "tacitly.methods.margin.queries",
    "NormHistogram": "tacitly.methods.shared.norm_histogram",
    "NormalEquations": "tacitly.methods.altmin.queries",
    "ObservationSum": "tacitly.methods.trace_regression.centering",
    "PairStatistic": "tacitly.methods.fedrep.as_printed",
    "PaperHeads": "tacitly.methods.fedrep.as_printed",
    "PowerStatistic": "tacitly.methods.centaur.as_printed",
    "PowerStep": "tacitly.methods.fedpower.power",
    "PowerVote": "tacitly.methods.centaur.queries",
    "Projected": "tacitly.federation.projected",
    "RidgeHeads": "tacitly.heads.ridge",
    "Scales": "tacitly.methods.trace_regression.queries",
    "ShiftedGram": "tacitly.methods.fedpower.gram",
    "SparseEquations": "tacitly.methods.low_rank_sparse.queries",
    "SparseHeadWork": "tacitly.methods.low_rank_sparse.heads",
    "SparseStep": "tacitly.methods.low_rank_sparse.queries",
    "Sparsity": "tacitly.methods.low_rank_sparse.heads",
    "StepEnergy": "tacitly.methods.trace_regression.curvature",
    "TangentSum": "tacitly.methods.trace_regression.queries",
    "TargetMoment": "tacitly.methods.low_rank_sparse.as_printed",
    "Whitening": "tacitly.methods.shared.whitening",
}
"""Classes that may travel, and where each is at home: queries, heads, and what they speak of.

Modules are loaded when their name first arrives.
"""

LIMIT = 1 << 30
"""Most bytes of a message."""

_MAGIC = b"tacitly1\n"
_HEADER_LIMIT, _ARRAYS, _DIMENSIONS, _DEPTH, _TEXT = 1 << 16, 64, 3, 4, 64
_LABELS, _CLASSES = "Sequence[Any] | None", 10_000
_OR_NONE = " | None"
_TYPES = ("<f8", "<i8", "|u1")


class WireError(ValueError):
    """Bytes that are no message, or a message about something unknown."""


def encode(thing: Any) -> bytes:
    """Write a query (or work for users) as bytes."""
    arrays: list[npt.NDArray[Any]] = []
    header = _plain(thing, arrays, 0)
    return pack({"thing": header}, arrays)


def decode(data: bytes) -> Any:
    """Make the query (or work) that :func:`encode` wrote; :class:`WireError` for everything else."""
    header, arrays = unpack(data)
    if set(header) != {"thing"}:
        raise WireError("a message must speak of one thing.")
    return _made(header["thing"], arrays, 0)


def pack(header: dict[str, Any], arrays: list[npt.NDArray[Any]]) -> bytes:
    """Write a header and arrays as bytes."""
    shapes = [[array.dtype.str if array.dtype.itemsize > 1 else "|u1", list(array.shape)] for array in arrays]
    line = json.dumps({**header, "arrays": shapes}, allow_nan=False, separators=(",", ":")).encode()
    data = b"".join([_MAGIC, line, b"\n", *(np.ascontiguousarray(array).tobytes() for array in arrays)])
    unpack(data)  # what could not be read is not sent
    return data


def unpack(data: bytes) -> tuple[dict[str, Any], list[npt.NDArray[Any]]]:
    """Read a header and arrays (read-only views); :class:`WireError` unless every byte is accounted for."""
    if len(data) > LIMIT or not data.startswith(_MAGIC):
        raise WireError("not a message, or too long a one.")
    end = data.find(b"\n", len(_MAGIC), len(_MAGIC) + _HEADER_LIMIT)
    if end < 0:
        raise WireError("the header has no end.")
    try:
        header = json.loads(data[len(_MAGIC) : end], parse_constant=_no_constant)
        shapes = header.pop("arrays")
        kinds = [(kind, list(shape)) for kind, shape in shapes]
    except (ValueError, TypeError, AttributeError, KeyError, OverflowError, RecursionError):
        raise WireError("the header cannot be read.") from None
    if len(kinds) > _ARRAYS:
        raise WireError("too many arrays.")
    if not all(type(size) is int for _, shape in kinds for size in shape):
        raise WireError("a size is a whole number.")
    arrays, at = [], end + 1
    for kind, shape in kinds:
        if kind not in _TYPES or len(shape) > _DIMENSIONS or any(size < 0 or size > LIMIT for size in shape):
            raise WireError("an array of an unknown kind or shape.")
        count = math.prod(shape)
        size = count * np.dtype(kind).itemsize
        if at + size > len(data):
            raise WireError("an array is cut off.")
        # A copy: arrays inside a message are read-only, begin anywhere, and have kernels compiled for them once more.
        arrays.append(np.frombuffer(data, dtype=kind, count=count, offset=at).reshape(shape).copy())
        at += size
    if at != len(data):
        raise WireError("bytes are left over.")
    return header, arrays


def _plain(thing: Any, arrays: list[npt.NDArray[Any]], depth: int) -> Any:
    if isinstance(thing, np.ndarray):
        arrays.append(np.ascontiguousarray(thing, dtype=np.float64))
        return {"array": len(arrays) - 1}
    if isinstance(thing, Unit):
        return str(thing)
    if thing is None or isinstance(thing, bool | str | int | float):
        return thing
    if isinstance(thing, np.generic):
        return thing.item()
    if isinstance(thing, tuple):  # labels stay at home: targets are their positions, so how many there are is enough
        return len(thing)
    name = type(thing).__name__
    if KNOWN.get(name) != type(thing).__module__ or depth > _DEPTH:
        raise WireError(f"{name} cannot travel: it does not stand in tacitly.federation.wire.KNOWN.")
    values = {field.name: getattr(thing, field.name) for field in dataclasses.fields(thing)}
    return {"class": name, "fields": {key: _plain(value, arrays, depth + 1) for key, value in values.items()}}


def _made(plain: Any, arrays: list[npt.NDArray[Any]], depth: int) -> Any:
    if not isinstance(plain, dict) or set(plain) != {"class", "fields"} or depth > _DEPTH:
        raise WireError("a thing must have a class and fields.")
    name, given = plain["class"], plain["fields"]
    if not isinstance(name, str) or name not in KNOWN or not isinstance(given, dict):
        raise WireError("an unknown class.")
    kind = getattr(import_module(KNOWN[name]), name)
    declared = {field.name: str(field.type) for field in dataclasses.fields(kind)}
    if set(given) != set(declared):
        raise WireError(f"{name} has other fields.")
    values = {key: _field(declared[key], value, arrays, depth) for key, value in given.items()}
    try:
        return kind(**values)
    except Exception:
        raise WireError(f"{name} refuses its fields.") from None


def _field(declared: str, value: Any, arrays: list[npt.NDArray[Any]], depth: int) -> Any:
    """Return a field's value if it is of the type its class declares."""
    if declared == "float" and isinstance(value, int | float) and not isinstance(value, bool):
        return _finite(value)
    if declared == "int" and isinstance(value, int) and not isinstance(value, bool):
        return value
    if declared == "bool" and isinstance(value, bool):
        return value
    if declared == "str" and isinstance(value, str) and len(value) <= _TEXT:
        return value
    if declared == "Unit" and value in [str(unit) for unit in Unit]:
        return Unit(value)
    if declared == "Array" and isinstance(value, dict) and set(value) == {"array"}:
        place = value["array"]
        if isinstance(place, int) and 0 <= place < len(arrays) and arrays[place].dtype == np.float64:
            if not np.isfinite(arrays[place]).all():
                raise WireError("an array is not finite.")
            return arrays[place]
    if declared == _LABELS and (value is None or (type(value) is int and 2 <= value <= _CLASSES)):
        return None if value is None else tuple(range(value))
    if declared.endswith(_OR_NONE) and declared.removesuffix(_OR_NONE) in KNOWN:
        return None if value is None else _field(declared.removesuffix(_OR_NONE), value, arrays, depth)
    if (declared == "Query" or declared in KNOWN) and isinstance(value, dict):
        made = _made(value, arrays, depth + 1)
        if declared in [base.__name__ for base in type(made).__mro__]:
            return made
    raise WireError(f"a field is not a {declared}.")


def _finite(value: float) -> float:
    """Return a number as a float; JSON's 1e999 reads as infinity, and whole numbers may be beyond any float."""
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise WireError("a number is not finite.")
    return number


def _no_constant(name: str) -> float:
    raise WireError(f"{name} is not a number.")
