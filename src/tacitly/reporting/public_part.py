"""What the public edition of a report may use: the published files of a model, and nothing else.

A :class:`PublicPart` is made from ``billboard.safetensors``, ``config.json`` and ``certificate.json`` (and an audit's
report, if it was published with them), or from the same data of a model in memory. It has no heads, no ids and no rows.
So everything computed from it is post-processing of releases: the page has no privacy cost and reveals nothing that the
folder does not.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tacitly.methods import REGISTRY
from tacitly.methods.base import PrivateModel
from tacitly.model_folder import PUBLIC, ModelError, config_of, public_files, read_config
from tacitly.privacy.certificate import Certificate


@dataclass(frozen=True)
class PublicPart:
    """A model without its private parts."""

    name: str
    kind: str
    parameters: Mapping[str, Any]
    features: tuple[str, ...]
    target: str | None
    arrays: Mapping[str, npt.NDArray[Any]]
    certificate: Certificate
    files: Mapping[str, bytes] | None = None
    """The published files, for verifying the certificate; None for a model that was not saved."""
    audit: str | None = field(default=None)

    @classmethod
    def of_folder(cls, folder: str | os.PathLike[str], *, name: str | None = None) -> PublicPart:
        """Read the public files of a model folder; ``private/`` is not opened."""
        from safetensors.numpy import load as from_bytes

        source = Path(folder)
        for file in PUBLIC:
            if not (source / file).is_file():
                raise ModelError(f"{source} is not a model folder: {file} is missing.")
        config = read_config(source / "config.json")
        certificate = Certificate.from_json((source / "certificate.json").read_text(encoding="utf-8"))
        files = public_files(source, certificate)
        for file, content in files.items():
            if hashlib.sha256(content).hexdigest() != certificate.files.get(file):
                raise ModelError(
                    f"{source / file} does not match its certificate: it was changed after the certificate was written."
                )
        audits = [content.decode("utf-8", "replace") for file, content in files.items() if file.startswith("audit.")]
        return cls(
            name=name or source.resolve().name,
            kind=str(config.get("class")),
            parameters=_plain(config["parameters"]),
            features=tuple(str(feature) for feature in config["features"]),
            target=config["target"],
            arrays=from_bytes(files["billboard.safetensors"]),
            certificate=certificate,
            files=files,
            audit=audits[0] if audits else None,
        )

    @classmethod
    def of_model(cls, model: PrivateModel, *, name: str | None = None) -> PublicPart:
        """Take the parts of a model in memory that would be published."""
        config = json.loads(json.dumps(config_of(model), default=str))
        return cls(
            name=name or config["class"],
            kind=config["class"],
            parameters=_plain(config["parameters"]),
            features=tuple(config["features"]),
            target=config["target"],
            arrays={key: np.array(value) for key, value in model.public_arrays().items()},
            certificate=model.certificate_,
        )

    @property
    def about(self) -> str:
        """The registry's description of the method; empty if the method is not registered."""
        found = next((method for method in REGISTRY.values() if method.public_name == self.kind), None)
        return "" if found is None else f"{found.result[:1].upper()}{found.result[1:]}."

    @property
    def personal(self) -> bool:
        """Whether a private edition exists: for personal models of rows, as ``tacitly fit`` makes them."""
        return any(method.public_name == self.kind and method.command == "fit" for method in REGISTRY.values())

    def rebuilt(self) -> Any:
        """Return the estimator with its public part set, without heads. Not for networks."""
        import tacitly

        model = getattr(tacitly, self.kind)(**self.parameters)
        model.feature_names_in_ = np.array(self.features, dtype=str)
        model.n_features_in_, model.target_name_ = len(self.features), self.target
        model.certificate_ = self.certificate
        model.take_public_arrays(dict(self.arrays))
        return model


def _plain(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {key: math.inf if value == "inf" else value for key, value in parameters.items()}
