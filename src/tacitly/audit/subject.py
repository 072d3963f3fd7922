"""Which estimator to audit, read from a folder or a file, and a cache of audit results."""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacitly.audit.report import audit
from tacitly.methods import REGISTRY
from tacitly.methods.base import PrivateModel, plain_parameter
from tacitly.model_folder import read_config
from tacitly.privacy.certificate import Certificate


@dataclass(frozen=True)
class Verdict:
    """The text of an audit's report, and whether the claim was not contradicted."""

    ok: bool
    text: str


def subject(target: str | os.PathLike[str]) -> tuple[PrivateModel, float | None]:
    """Read which estimator to audit, and its claim, from a model folder or a JSON file.

    A file has the form ``{"class": "PrivateFedRep", "parameters": {"rank": 2, "epsilon": 1.0}}``; your own class is
    named ``"module:Class"`` and imported from the current folder. A folder may name only classes of tacitly; the claim
    is the one in its certificate.
    """
    place = Path(target)
    path = place / "config.json" if place.is_dir() else place
    if not path.is_file():
        raise ValueError(f"{place} is neither a model folder nor a JSON file.")
    known = {method.class_name: method for method in REGISTRY.values() if not method.network}
    config = read_config(path) if place.is_dir() else _read(path)
    try:
        name, parameters = str(config["class"]), dict(config["parameters"])
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{path} must be JSON with 'class' and 'parameters'.") from None
    if name in known:
        kind = known[name].load()
    elif ":" in name and not place.is_dir():
        kind = _imported(name)
    else:
        raise ValueError(f"{path} names {name!r}. Expected one of {list(known)}, or module:Class in a file.")
    given = {key: math.inf if value == "inf" else value for key, value in parameters.items()}
    try:
        model: PrivateModel = kind(**given)
    except TypeError as error:
        raise ValueError(f"{path}: {error}") from None
    if not place.is_dir():
        return model, None
    certificate = Certificate.from_json((place / "certificate.json").read_text(encoding="utf-8"))
    return model, certificate.epsilon if certificate.certified else None


def cached_audit(
    estimator: PrivateModel,
    *,
    claimed: float | None,
    runs: int,
    workers: int | None = None,
    fresh: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Verdict:
    """Audit an estimator, or return the result of an earlier audit of the same code and parameters."""
    question = {
        "class": f"{type(estimator).__module__}:{type(estimator).__qualname__}",
        "parameters": {k: plain_parameter(v) for k, v in estimator.get_params(deep=False).items() if k != "ledger"},
        "claimed": claimed,
        "runs": runs,
        "code": _code(estimator),
    }
    key = hashlib.sha256(json.dumps(question, sort_keys=True, default=str).encode()).hexdigest()
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tacitly" / "audits"
    known = folder / f"{key}.json"
    if known.is_file() and not fresh:
        found: dict[str, Any] = json.loads(known.read_text(encoding="utf-8"))
        return Verdict(bool(found["ok"]), f"{found['text']}\n(found earlier; --fresh runs it again)")
    report = audit(estimator, runs=runs, claimed=claimed, workers=workers, progress=progress)
    verdict = Verdict(report.ok, str(report))
    folder.mkdir(parents=True, exist_ok=True)
    partial = known.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps({"ok": verdict.ok, "text": verdict.text}), encoding="utf-8")
    partial.replace(known)
    return verdict


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        raise ValueError(f"{path} must be JSON with 'class' and 'parameters'.") from None


def _imported(name: str) -> Any:
    module, _, kind = name.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        return getattr(importlib.import_module(module), kind)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{name!r} cannot be imported: {error}.") from None
    finally:
        sys.path.pop(0)


def _code(estimator: PrivateModel) -> str:
    """Return a digest of the source of tacitly and of the estimator: changed code is audited again."""
    digest = hashlib.sha256()
    files = sorted(Path(__file__).parents[1].rglob("*.py"))
    own = getattr(sys.modules.get(type(estimator).__module__), "__file__", None)
    for path in [*files, *([Path(own)] if own else [])]:
        digest.update(path.read_bytes())
    return digest.hexdigest()
