"""A certificate as an entry of OpenDP's public registry of deployments, and the fields that only people can fill in.

The registry describes a deployment by 32 fields in eight groups. Fields that follow from the certificate are filled in.
Fields that it does not contain (who publishes, why, where) come from the account or the caller. Empty fields are left
out, so that the entry validates against the registry's schema. ``status`` is always ``Draft``, because the registry's
editors approve entries.
"""

from __future__ import annotations

import re
from typing import Any

from tacitly.privacy.certificate import Certificate
from tacitly.privacy.guarantee import Adjacency

SECTORS = ("Technology", "Healthcare", "Education", "Government", "Energy", "Finance")
_UNKNOWN = "not stated"
_UNITS = {
    "user": "all rows of one user",
    "row": "one row",
    "label": "the label of one row",
}
_NEIGHBOURS = {
    Adjacency.ZERO_OUT: "one {unit}'s contribution is replaced by zero; the list of {unit}s and its length are public",
    Adjacency.REPLACE_ONE: "one {unit}'s data are replaced by arbitrary other data; the number of {unit}s is public",
}


def registry_entry(
    certificate: Certificate,
    *,
    name: str,
    description: str | None = None,
    sector: str | None = None,
    sources: str | None = None,
    authors: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Return the entry as plain data; JSON of it is valid YAML, the registry's format."""
    if not certificate.certified:
        raise ValueError("only a certified model can be registered: this one claims no privacy.")
    if sector is not None and sector not in SECTORS:
        raise ValueError(f"sector must be one of {', '.join(SECTORS)}. Found {sector!r}.")
    curator = certificate.curator or _UNKNOWN
    basic = {
        "name": name,
        "data_curators": [curator],
        "intended_use": certificate.purpose or _UNKNOWN,
        "data_product_type": "Machine learning model",
        "data_product_region": certificate.region or _UNKNOWN,
        "description": description
        or f"{certificate.algorithm}, learned from {certificate.n_users} {certificate.unit}s.",
        "publication_date": certificate.date,
        "data_product_sector": sector,
    }
    deployment = {
        "basic": basic,
        "dp_variant": _variant(certificate),
        "privacy_loss": _loss(certificate),
        "deployment_model": _model(certificate),
        "accounting": _accounting(certificate),
        "implementation": _implementation(certificate),
        "administrative": {
            "sources": sources,
            "notes": "; ".join(certificate.notes) or None,
            "registry_authors": list(authors or (curator,)),
        },
    }
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "model"
    return {
        "url_slug": slug,
        "status": "Draft",
        "tier": 3,
        "deployment": {group: _filled(content) for group, content in deployment.items()},
    }


def count_fields(entry: dict[str, Any]) -> int:
    """Return how many of the registry's 32 fields an entry fills in."""
    return sum(len(group) for group in entry["deployment"].values())


def _filled(group: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if value is not None}


def _variant(certificate: Certificate) -> dict[str, Any]:
    return {
        "variant_name": "Pure DP" if certificate.delta == 0 else "Approximate DP",
        "data_domain": f"tables of rows by {certificate.unit}, any finite numbers; other contributions count as zero",
        "unprotected_quantities": "; ".join(certificate.public),
    }


def _loss(certificate: Certificate) -> dict[str, Any]:
    unit = str(certificate.unit)
    parameters: dict[str, float] = {"epsilon": certificate.epsilon, "delta": certificate.delta}
    zero_out = certificate.adjacency is Adjacency.ZERO_OUT
    rho = certificate.rho_zero_out if zero_out else certificate.rho_replace_one
    if rho is not None:
        parameters["rho"] = rho
    mu = certificate.mu_zero_out if zero_out else certificate.mu_replace_one
    details = (
        f"ε = {certificate.epsilon_zero_out:.6g} (zero-out), {certificate.epsilon_replace_one:.6g} (replace-one) at "
        f"δ = {certificate.delta:g}; ε at any other δ follows from the list of releases in the certificate"
    )
    details += "" if mu is None else f"; μ = {mu:.6g} (Gaussian DP)"
    if certificate.account is not None:
        details += f". {certificate.totals()}"
    return {
        "privacy_unit": f"{unit}: {_UNITS[unit]}",
        "privacy_unit_details": _NEIGHBOURS[certificate.adjacency].format(unit=unit),
        "privacy_parameters": parameters,
        "privacy_parameters_details": details,
    }


def _model(certificate: Certificate) -> dict[str, Any]:
    local = "own noise" in certificate.trust or "local" in certificate.trust.split()
    sites = "node" in certificate.trust or "coordinator" in certificate.trust
    return {
        "model_name": "Local" if local else "Federated" if sites else "Central",
        "model_name_details": certificate.trust,
        "actors": "who sees what: " + certificate.trust + ". Personal models (heads) stay with their users",
        "release_type": "One release",
        "release_type_details": "one model; later fits on the same people are debited to the same account"
        if certificate.account is not None
        else "one model; no account adds up other fits on the same people",
        "data_source_type": "Static",
        "data_source_type_details": "the rows of one fit, fixed when it began",
        "access_type": "Non-interactive",
        "access_type_details": "the model is published as it is; nobody queries the data",
    }


def _accounting(certificate: Certificate) -> dict[str, Any]:
    return {
        "post_processing": "everything in the model is computed from the released noisy sums and choices",
        "composition": (
            f"{len(certificate.releases)} releases, composed adaptively: Gaussians exactly (μ² adds up), choices as "
            "randomised responses, sampled releases by privacy-loss distributions"
        ),
    }


def _implementation(certificate: Certificate) -> dict[str, Any]:
    kinds = sorted({release.noise for release in certificate.releases})
    libraries = ", ".join(f"{name} {version}" for name, version in certificate.dependencies.items())
    code = certificate.code
    return {
        "preprocessing_and_hyperparameter_tuning": (
            "scaling, clipping bounds and starts are fixed beforehand or released privately and charged. Not covered: "
            + "; ".join(certificate.not_covered)
        ),
        "mechanisms": (
            f"{', '.join(sorted({release.event.to_dict()['mechanism'] for release in certificate.releases}))}; noise: "
            f"{', '.join(kinds)} ('exact' is discrete Gaussian noise on a grid, from the operating system's entropy). "
            f"tacitly {code['version']}, source sha256 {code['sha256']}, commit {code['commit'] or 'not recorded'}; "
            f"{libraries}"
        ),
        "justification": (
            "sensitivities are proved beside each mechanism, tested with worst-case neighbours and attacked by an "
            "auditor; ε is derived again from the certificate by independent code (tacitly verify)"
        ),
    }
