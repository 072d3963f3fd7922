"""What coordinator and nodes say to each other: an ask, and an answer to it. Numbers and names, no code."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from tacitly.federation.base import Chosen
from tacitly.federation.wire import WireError, pack, unpack

CODES = ("ok", "malformed", "refused", "failed")
"""All that a node ever says about what went wrong. An exception's text could quote a row."""

_TEXT = 200
NAME = re.compile(r"[A-Za-z0-9._ -]{1,100}")
"""What runs, steps and nodes may be called: nothing that could be read as the end of one name and the start of another.
"""


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One request of the coordinator.

    ``kind`` is "sum" or "heads"; ``run`` and ``step`` name the release, the same if it is asked for again; ``token`` is
    this round's and this node's, so that an answer to another round, or of another node, is known. ``sigma`` above 0
    asks the node to add noise of that standard deviation (``noise`` says how) before anything leaves it. ``group``
    names the nodes whose masks cancel, the share of noise being for ``honest`` of them.

    >>> ask = Ask(kind="sum", run="model", step="1.0", token="t", thing=b"query", group=("north", "south"))
    >>> Ask.from_bytes(ask.to_bytes()) == ask
    True
    """

    kind: str
    run: str
    step: str
    token: str
    thing: bytes
    bound: float = 1.0
    grid: float = 1.0
    sigma: float = 0.0
    clip_factor: float = 2.0
    noise: str = "none"
    group: tuple[str, ...] = ()
    honest: int = 0
    chosen: Chosen | None = None

    def question(self) -> bytes:
        """Return a digest of all that everybody of a group is asked alike: all but the token.

        (And but ``chosen``, which goes with central trust, where there are no masks.)
        """
        told = {key: value for key, value in asdict(self).items() if key not in ("token", "thing", "chosen")}
        told["thing"] = hashlib.sha256(self.thing).hexdigest()
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).digest()

    def to_bytes(self) -> bytes:
        """Write it."""
        plain = {key: value for key, value in asdict(self).items() if key not in ("thing", "chosen")}
        arrays: list[npt.NDArray[Any]] = [np.frombuffer(self.thing, dtype=np.uint8)]
        if self.chosen is not None:
            arrays.append(np.ascontiguousarray(self.chosen).view(np.uint8))
        return pack({"ask": {**plain, "group": list(self.group)}}, arrays)

    @classmethod
    def from_bytes(cls, data: bytes) -> Ask:
        """Read it; :class:`~tacitly.federation.wire.WireError` for anything else."""
        header, arrays = unpack(data)
        told = header.get("ask")
        if set(header) != {"ask"} or not isinstance(told, dict) or len(arrays) not in (1, 2):
            raise WireError("not an ask.")
        if any(array.dtype != np.uint8 or array.ndim != 1 for array in arrays):
            raise WireError("an ask carries bytes.")
        if set(told) != {field.name for field in fields(cls)} - {"thing", "chosen"}:
            raise WireError("an ask with other fields.")
        for name in ("kind", "run", "step", "token", "noise"):
            if not isinstance(told[name], str) or len(told[name]) > _TEXT:
                raise WireError(f"{name} is not a short text.")
        if not (NAME.fullmatch(told["run"]) and NAME.fullmatch(told["step"])):
            raise WireError("run and step are names.")
        for name in ("bound", "grid", "sigma", "clip_factor"):
            if isinstance(told[name], bool) or not isinstance(told[name], int | float) or not 0 <= told[name] < 1e300:
                raise WireError(f"{name} is not a number.")
        group = told["group"]
        if not isinstance(group, list) or not all(isinstance(name, str) and NAME.fullmatch(name) for name in group):
            raise WireError("group is not a list of names.")
        if isinstance(told["honest"], bool) or not isinstance(told["honest"], int):
            raise WireError("honest is not a whole number.")
        chosen = arrays[1].astype(bool) if len(arrays) == 2 else None
        return cls(**{**told, "group": tuple(group), "thing": arrays[0].tobytes(), "chosen": chosen})


@dataclass(frozen=True)
class Answer:
    """A node's answer: the token it was asked with, a code, and integers on the grid if the code is "ok".

    >>> Answer.from_bytes(Answer("token", "ok", np.array([1, -2])).to_bytes())
    Answer(token='token', code='ok', total=array([ 1, -2]))
    """

    token: str
    code: str = "ok"
    total: npt.NDArray[np.int64] | None = None

    def to_bytes(self) -> bytes:
        """Write it."""
        return pack({"answer": [self.token, self.code]}, [] if self.total is None else [self.total])

    @classmethod
    def from_bytes(cls, data: bytes) -> Answer:
        """Read it; :class:`~tacitly.federation.wire.WireError` for anything else."""
        header, arrays = unpack(data)
        said = header.get("answer")
        if set(header) != {"answer"} or not isinstance(said, list) or len(said) != 2:
            raise WireError("not an answer.")
        token, code = said
        if not isinstance(token, str) or len(token) > _TEXT or code not in CODES or len(arrays) > 1:
            raise WireError("not an answer.")
        if arrays and (arrays[0].dtype != np.int64 or arrays[0].ndim != 1):
            raise WireError("an answer is whole numbers.")
        return cls(token, code, arrays[0] if arrays else None)
