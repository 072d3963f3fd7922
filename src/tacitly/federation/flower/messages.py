"""Messages between coordinator and nodes: requests ("asks") and answers. They contain numbers and names, never code."""

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
"""All that a node ever reports about an error: the text of an exception could quote a private row."""

_TEXT = 200
NAME = re.compile(r"[A-Za-z0-9._ -]{1,100}")
"""Allowed names of runs, steps and nodes: without characters that could separate two names."""


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One request of the coordinator.

    ``kind`` is "sum" or "heads". ``run`` and ``step`` name the release and stay the same if it is asked for again.
    ``token`` is unique to this round and this node, so that answers to other rounds or from other nodes are recognised.
    A positive ``sigma`` asks the node to add noise of that standard deviation (in mode ``noise``) before it answers.
    ``group`` names the nodes of a masked sum; the noise of ``honest`` of them adds up to ``sigma``.

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

    def question(self, roster: bytes = b"") -> bytes:
        """Return a digest of everything that is the same for all nodes of a group: all fields but the token.

        ``roster`` says among whom it is asked, where answers are masked: the same words among others are another
        question. (``chosen`` is left out too: it is used with central trust only, where there are no masks.)
        """
        content = {key: value for key, value in asdict(self).items() if key not in ("token", "thing", "chosen")}
        content["roster"] = roster.hex()
        content["thing"] = hashlib.sha256(self.thing).hexdigest()
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).digest()

    def to_bytes(self) -> bytes:
        """Encode as bytes."""
        plain = {key: value for key, value in asdict(self).items() if key not in ("thing", "chosen")}
        arrays: list[npt.NDArray[Any]] = [np.frombuffer(self.thing, dtype=np.uint8)]
        if self.chosen is not None:
            arrays.append(np.ascontiguousarray(self.chosen).view(np.uint8))
        return pack({"ask": {**plain, "group": list(self.group)}}, arrays)

    @classmethod
    def from_bytes(cls, data: bytes) -> Ask:
        """Decode bytes; raise :class:`~tacitly.federation.wire.WireError` for anything else."""
        header, arrays = unpack(data)
        content = header.get("ask")
        if set(header) != {"ask"} or not isinstance(content, dict) or len(arrays) not in (1, 2):
            raise WireError("the message is not an ask.")
        if any(array.dtype != np.uint8 or array.ndim != 1 for array in arrays):
            raise WireError("the arrays of an ask must be bytes.")
        if set(content) != {field.name for field in fields(cls)} - {"thing", "chosen"}:
            raise WireError("an ask must have exactly the known fields.")
        for name in ("kind", "run", "step", "token", "noise"):
            if not isinstance(content[name], str) or len(content[name]) > _TEXT:
                raise WireError(f"{name} must be a string of at most {_TEXT} characters.")
        if not (NAME.fullmatch(content["run"]) and NAME.fullmatch(content["step"])):
            raise WireError("run and step must be names.")
        for name in ("bound", "grid", "sigma", "clip_factor"):
            value = content[name]
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e300:
                raise WireError(f"{name} must be a non-negative number below 1e300.")
        group = content["group"]
        if not isinstance(group, list) or not all(isinstance(name, str) and NAME.fullmatch(name) for name in group):
            raise WireError("group must be a list of names.")
        if isinstance(content["honest"], bool) or not isinstance(content["honest"], int):
            raise WireError("honest must be an integer.")
        chosen = arrays[1].astype(bool) if len(arrays) == 2 else None
        return cls(**{**content, "group": tuple(group), "thing": arrays[0].tobytes(), "chosen": chosen})


@dataclass(frozen=True)
class Answer:
    """A node's answer: the token of the ask, a code, and integers on the grid if the code is "ok".

    >>> Answer.from_bytes(Answer("token", "ok", np.array([1, -2])).to_bytes())
    Answer(token='token', code='ok', total=array([ 1, -2]))
    """

    token: str
    code: str = "ok"
    total: npt.NDArray[np.int64] | None = None

    def to_bytes(self) -> bytes:
        """Encode as bytes."""
        return pack({"answer": [self.token, self.code]}, [] if self.total is None else [self.total])

    @classmethod
    def from_bytes(cls, data: bytes) -> Answer:
        """Decode bytes; raise :class:`~tacitly.federation.wire.WireError` for anything else."""
        header, arrays = unpack(data)
        content = header.get("answer")
        if set(header) != {"answer"} or not isinstance(content, list) or len(content) != 2:
            raise WireError("the message is not an answer.")
        token, code = content
        if not isinstance(token, str) or len(token) > _TEXT or code not in CODES or len(arrays) > 1:
            raise WireError("an answer must have a token, a known code and at most one array.")
        if arrays and (arrays[0].dtype != np.int64 or arrays[0].ndim != 1):
            raise WireError("the array of an answer must be a vector of integers.")
        return cls(token, code, arrays[0] if arrays else None)
