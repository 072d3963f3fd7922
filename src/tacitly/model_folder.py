"""Save and load a fitted model as a folder that keeps public and private files apart. No pickle.

``billboard.safetensors`` (the basis, or the components), ``certificate.json`` and ``config.json`` are public.
``private/`` holds heads, intercepts and ids, readable by its owner only; :func:`publish` leaves it out. A model without
heads has no such folder.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tacitly.methods import REGISTRY
from tacitly.portable import staged, write_private
from tacitly.privacy.account import record
from tacitly.privacy.certificate import Certificate
from tacitly.privacy.ledger import Ledger
from tacitly.privacy.signing import signed
from tacitly.private_arrays import private_from_bytes, private_to_bytes

if TYPE_CHECKING:
    from tacitly.methods.base import PrivateModel

PUBLIC = ("billboard.safetensors", "certificate.json", "config.json")
FORMAT = {"format": "tacitly model", "version": 1}
"""Format and version in ``config.json``. A folder with another version is refused."""


class ModelError(ValueError):
    """A model folder is missing, incomplete or invalid."""


def save(
    model: PrivateModel,
    folder: str | os.PathLike[str],
    *,
    purpose: str | None = None,
    curator: str | None = None,
    region: str | None = None,
) -> Path:
    """Write a fitted model to ``folder`` atomically, then finish its run in the ledger.

    Its certificate states ``purpose``, ``curator`` and ``region``, by default those of the account. The published files
    are hashed into the certificate, which is recorded in the account and signed.

    >>> import tacitly, tempfile
    >>> X, y, users, *_ = tacitly.datasets.make_shared_subspace(200, 4, 1, 8, random_state=0)
    >>> model = tacitly.PrivateFedRep(rank=1, epsilon=4.0).fit(X, y, users)
    >>> with tempfile.TemporaryDirectory() as parent:
    ...     loaded = tacitly.load(tacitly.save(model, parent + "/model"))
    >>> bool((loaded.predict(X, users) == model.predict(X, users)).all())
    True
    """
    from safetensors.numpy import save as to_bytes

    target = Path(folder)
    if target.exists():
        raise ModelError(f"{target} exists already. Choose another folder, or remove it.")
    public = {
        "billboard.safetensors": to_bytes({k: np.ascontiguousarray(v) for k, v in model.public_arrays().items()}),
        "config.json": (json.dumps(config_of(model), indent=2) + "\n").encode(),
    }
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in public.items()}
    given = {"purpose": purpose, "curator": curator, "region": region}
    words = {key: value for key, value in given.items() if value is not None}
    heads = _private_as_bytes(model)
    with staged(target) as staging:
        for name, content in public.items():
            (staging / name).write_bytes(content)
        text = model.certify(files=hashes, **words).to_json()
        (staging / "certificate.json").write_text(text, encoding="utf-8")
        if heads is not None:
            (staging / "private").mkdir(mode=0o700)
            write_private(staging / "private" / "heads.safetensors", heads)
    model.close()
    return target


def load(folder: str | os.PathLike[str], **modules: Any) -> PrivateModel:
    """Read a model folder written by :func:`save`. A published folder has no heads: the model can only personalise.

    A network's folder holds parameters, not code: pass ``body=`` and ``head=`` modules of the same architecture (and
    ``augment=``, if the model has one).
    """
    from safetensors.numpy import load as from_bytes

    source = Path(folder)
    for name in PUBLIC:
        if not (source / name).is_file():
            raise ModelError(f"{source} is not a model folder: {name} is missing.")
    config = read_config(source / "config.json")
    kind = _kind(source, str(config.get("class")))
    certificate = Certificate.from_json((source / "certificate.json").read_text(encoding="utf-8"))
    for name, content in public_files(source, certificate).items():
        if hashlib.sha256(content).hexdigest() != certificate.files.get(name):
            raise ModelError(
                f"{source / name} does not match its certificate: it was changed after the certificate was written."
            )
    parameters: dict[str, Any] = {
        key: math.inf if value == "inf" else value for key, value in config["parameters"].items()
    }
    code = {"body", "head"} & set(kind._get_param_names())
    code |= {name for name in ("augment", "module") if parameters.pop(name, False)}
    if set(modules) != code:
        given = ", ".join(f"{name}=…" for name in sorted(code))
        raise ModelError(
            f"{source} holds a network. Call load(folder, {given}) with modules of the same architecture."
            if code
            else f"{source} holds no network, so load takes no modules. Found {sorted(modules)}."
        )
    model = kind(**modules, **parameters)
    model.feature_names_in_ = np.array(config["features"], dtype=str)
    model.n_features_in_ = len(model.feature_names_in_)
    model.target_name_ = config["target"]
    model.user_column_ = config.get("user")
    model.take_public_arrays(from_bytes((source / "billboard.safetensors").read_bytes()))
    model.certificate_ = certificate
    private = source / "private" / "heads.safetensors"
    if private.is_file():
        model.users_, tensors = private_from_bytes(private.read_bytes())
        model.take_private_arrays(tensors)
    return model


def read_config(path: Path) -> dict[str, Any]:
    """Read a model folder's ``config.json``; raise if it has another format or version."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        raise ModelError(f"{path} is not JSON. Expected a model folder written by tacitly.") from None
    found = {key: config.get(key) for key in FORMAT} if isinstance(config, dict) else None
    if found != FORMAT:
        raise ModelError(f"{path.parent} must hold {FORMAT}. Found {found}: fit again with this version of tacitly.")
    return dict(config)


def _kind(folder: Path, name: str) -> type[PrivateModel]:
    """Return the class named by a folder, which must be an estimator of a registered method."""
    home = REGISTRY.home(name)
    if home is None:
        known = [method.public_name for method in REGISTRY.values()]
        raise ModelError(f"{folder} holds a {name!r}. Expected one of {', '.join(known)}, or a baseline of theirs.")
    # Imported through the package, which says what to install if PyTorch is missing.
    package = "tacitly.neural" if name.startswith("neural.") else "tacitly"
    kind: type[PrivateModel] = getattr(importlib.import_module(package), name.rpartition(".")[2])
    return kind


def public_files(folder: Path, certificate: Certificate) -> dict[str, bytes]:
    """Return the contents of a folder's existing public files, except the certificate, which lists them.

    A score is one of them even if the certificate does not list it: beside a verified model it would be believed.
    """
    names = {name for name in (*PUBLIC, "evaluation.json", *certificate.files) if name == Path(name).name} - {
        "certificate.json"
    }
    return {name: (folder / name).read_bytes() for name in sorted(names) if (folder / name).is_file()}


def publish(
    folder: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    allow_uncertified: bool = False,
    audit: str | os.PathLike[str] | None = None,
    ledger: Ledger | None = None,
    **words: str,
) -> Path:
    """Copy the public part of a model folder, after verifying its certificate.

    With an ``audit`` report or ``words`` (``purpose``, ``curator``, ``region``) the copy has a new certificate, which
    states them, is recorded in the model's ``ledger`` and signed.
    """
    from tacitly.privacy.verification import verify

    source, goal = Path(folder), Path(target)
    for name in PUBLIC:
        if not (source / name).is_file():
            raise ModelError(f"{source} is not a model folder: {name} is missing.")
    _kind(source, str(read_config(source / "config.json").get("class")))
    text = (source / "certificate.json").read_text(encoding="utf-8")
    certificate = Certificate.from_json(text)
    if not certificate.certified and not allow_uncertified:
        raise ModelError(
            f"this model is not certified ({'; '.join(certificate.reasons)}). "
            "Allow uncertified models to publish it anyway."
        )
    files = public_files(source, certificate)
    verdict = verify(text, files=files, ledger=ledger, allow_uncertified=allow_uncertified)
    if not verdict.ok:
        raise ModelError(f"the certificate does not hold: {', '.join(verdict.failed)}. Nothing was published.")
    if goal.exists():
        raise ModelError(f"{goal} exists already. Choose another folder, or remove it.")
    if audit is not None:
        files[f"audit{Path(audit).suffix or '.txt'}"] = Path(audit).read_bytes()
    if audit is not None or words:
        hashes = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
        more: dict[str, Any] = {**words, "files": hashes}
        text = _amended(replace(certificate, **more), ledger).to_json()
    with staged(goal) as staging:
        for name, content in files.items():
            (staging / name).write_bytes(content)
        (staging / "certificate.json").write_text(text, encoding="utf-8")
    return goal


def _amended(certificate: Certificate, ledger: Ledger | None) -> Certificate:
    """Return a certificate with additional statements, recorded where the first one was."""
    if certificate.account is not None:
        if ledger is None:
            raise ModelError("a certificate with further statements is recorded in its account: pass the ledger.")
        certificate = record(certificate, ledger, certificate.releases[-1].run)
    return signed(certificate)


def _private_as_bytes(model: PrivateModel) -> bytes | None:
    private = model.private_arrays()
    return private_to_bytes(model.users_, private) if private else None


def config_of(model: PrivateModel) -> dict[str, Any]:
    """Return the content of ``config.json`` for a model."""
    from tacitly.methods.base import plain_parameter  # imports scikit-learn, which verifying and publishing do not need

    return {
        **FORMAT,
        "class": model.folder_class,
        "parameters": {key: plain_parameter(value) for key, value in model.folder_parameters().items()},
        "features": [str(name) for name in model.feature_names_in_],
        "target": model.target_name_,
        "user": model.user_column_,
    }
