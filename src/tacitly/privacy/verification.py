"""Verification: check a certificate without trusting anything in it.

The text is parsed strictly (every field known, present, and of its type and range), every derived number is computed
again by :mod:`tacitly.privacy.second_opinion`, and the parts are compared with each other. Nothing here uses the
accountant or the classes that wrote the certificate, so an error there is not repeated here.

Some things cannot be verified from the certificate alone:

* whether the listed releases are complete (pass the ledger);
* whether they produced this model (pass the files and the ledger: the ledger records the full text of the certificate,
  and no second statement about the same model is accepted; but it does not contain what its owner never recorded);
* whether the sensitivities bound what users sent (tests and audits check this).

Without a ledger and without the signer's public key, a certificate whose numbers were all rewritten consistently
passes: such a forgery cannot be detected.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from tacitly.privacy.certificate_text import read, writable
from tacitly.privacy.ledger_comparison import ledger_agrees
from tacitly.privacy.second_opinion import (
    SENSITIVITY,
    chosen,
    concentrated_of,
    epsilon_of,
    noise_of,
    numeric_epsilon,
    numerically_composable,
    protected,
    slack_of,
)
from tacitly.privacy.verdict import TOLERANCE, Check, Verdict, close, same

if TYPE_CHECKING:
    from tacitly.privacy.ledger import Ledger

__all__ = ["Check", "Verdict", "verify"]

_CROSS_TOLERANCE = 0.02
_CROSS_RANGE = (0.01, 50.0)
_FACTORS = (2.0, math.sqrt(2.0))


def verify(
    certificate_json: str,
    *,
    files: Mapping[str, bytes] | None = None,
    ledger: Ledger | None = None,
    key: str | None = None,
    allow_uncertified: bool = False,
) -> Verdict:
    """Check a certificate's text and, if given, that it belongs to published files, a ledger and a signer's public key.

    A certificate that makes no claim passes only if uncertified models are allowed.
    """
    try:
        data = read(certificate_json)
    except (ValueError, RecursionError) as error:
        return Verdict((Check("well-formed", False, str(error)),))
    checks = [Check("well-formed", True, "every field is known, present and of its type")]
    checks.append(_digest_matches(data))
    checks += _releases_hold(data["releases"], data["budget"]["unit"])
    checks.append(_marked_properly(data))
    checks.append(_certified(data, allow_uncertified))
    checks += _claims_follow(data)
    checks.append(_delta(data))
    checks += _signed(data, key)
    if files is not None:
        checks.append(_files_match(data, files))
    if ledger is not None:
        checks += ledger_agrees(data, ledger)
    return Verdict(tuple(checks))


def _digest_matches(data: Mapping[str, Any]) -> Check:
    rest = writable({key: value for key, value in data.items() if key not in ("digest", "signature")})
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return same("digest", data["digest"], hashlib.sha256(text.encode()).hexdigest())


def _releases_hold(releases: list[dict[str, Any]], unit: str) -> Iterable[Check]:
    """Check each release, and that none is missing between them."""
    nothing = "none: a model without releases has nothing to certify"
    yield Check("releases", bool(releases), f"{len(releases)}" if releases else nothing)
    expected: Counter[str] = Counter()
    faults: dict[str, list[str]] = {
        name: [] for name in ("published", "order", "sensitivity", "unit", "slack", "selection")
    }
    for release in releases:
        event, name = release["event"], release["name"]
        moves = event["sensitivity"]
        selection = chosen(release)
        claimed = 0.0 if selection else event["slack"]
        slack = slack_of(release) if protected(release) else claimed
        ideal = release["noise"] == "exact" and release["grid"] == 0
        found = {
            "published": release["state"] == "published",
            "order": release["index"] == expected[release["run"]],
            "sensitivity": (moves["zero_out"], moves["replace_one"]) == (1, 2)
            if selection
            else any(math.isclose(moves["replace_one"], f * moves["zero_out"], rel_tol=1e-12) for f in _FACTORS),
            "unit": moves["unit"] == unit,
            "slack": math.isclose(slack, claimed, rel_tol=TOLERANCE) and not ideal,
            "selection": not selection or release["noise"] != "float",
        }
        expected[release["run"]] = release["index"] + 1
        for check, ok in found.items():
            if not ok:
                faults[check].append(name)
    meaning = {
        "published": "every release has a value",
        "order": "no release is missing before another",
        "sensitivity": "replace_one is 2 (or, for sums of which no two terms oppose, √2) times zero_out",
        "unit": f"every release protects one {unit}",
        "slack": "200 * coordinates * (grid / sigma)^2, on a grid where noise is exact",
        "selection": "every choice is drawn exactly",
    }
    for check, names in faults.items():
        yield Check(check, not names, meaning[check] + (f"; violated by {names}" if names else ""))


def _marked_properly(data: Mapping[str, Any]) -> Check:
    """Check that a certificate's mode agrees with its content."""
    problems = []
    releases, reasons, certified = data["releases"], data["reasons"], data["mode"] == "certified"
    bare = [release["name"] for release in releases if not protected(release)]
    if certified == bool(reasons):
        problems.append(f"mode {data['mode']!r} with {len(reasons)} reasons")
    if certified and bare:
        problems.append(f"certified although nothing protects {bare}")
    if any((release["noise"] == "none") != (noise_of(release) == 0) for release in releases):
        problems.append("noise 'none' with a positive sigma (or scale), or the reverse")
    if data["certified"] != (certified and not bare and math.isfinite(data["epsilon"])):
        problems.append(f"certified is {data['certified']} with epsilon {data['epsilon']}")
    return Check("marking", not problems, "; ".join(problems) or f"mode {data['mode']}")


def _certified(data: Mapping[str, Any], allow_uncertified: bool) -> Check:
    if data["certified"] and data["mode"] == "certified":
        return Check("certified", True, "the certificate makes a claim")
    reasons = "; ".join(data["reasons"]) or "epsilon is infinite"
    return Check("certified", allow_uncertified, f"not certified{' (allowed)' * allow_uncertified}: {reasons}")


def _claims_follow(data: Mapping[str, Any]) -> Iterable[Check]:
    """Compare the three claimed ε with the derived ones, the budget and, within its range, a numeric composition."""
    budget, releases = data["budget"], data["releases"]
    uncertified = data["mode"] != "certified" or data["reasons"]
    derived = {
        adjacency: math.inf if uncertified else epsilon_of(releases, adjacency, budget["delta"])
        for adjacency in SENSITIVITY
    }
    epsilon = derived[budget["adjacency"]]
    yield close("epsilon", data["epsilon"], epsilon, TOLERANCE)
    for adjacency, name in SENSITIVITY.items():
        yield close(f"epsilon_{name}", data[f"epsilon_{name}"], derived[adjacency], TOLERANCE)
    if not uncertified:
        within = epsilon <= budget["epsilon"] * (1 + TOLERANCE)
        yield Check("budget", within, f"{epsilon:.6g} of the requested {budget['epsilon']:.6g}")
    for adjacency, name in SENSITIVITY.items():
        pair = (None, None) if uncertified else concentrated_of(releases, adjacency)
        for kind, value in zip(("mu", "rho"), pair, strict=True):
            claimed = data[f"{kind}_{name}"]
            if claimed is None or value is None:
                yield Check(f"{kind}_{name}", claimed is value, f"claimed {claimed}, derived {value}")
            else:
                yield close(f"{kind}_{name}", claimed, value, TOLERANCE)
    for adjacency, value in derived.items():
        # At δ = 0, ε is a plain sum, which a grid of losses cannot check.
        possible = releases and budget["delta"] > 0 and _CROSS_RANGE[0] <= value <= _CROSS_RANGE[1]
        if possible and numerically_composable(releases, adjacency):
            numeric = numeric_epsilon(releases, adjacency, budget["delta"], near=value)
            yield close(f"numeric_{SENSITIVITY[adjacency]}", value, numeric, _CROSS_TOLERANCE)


def _delta(data: Mapping[str, Any]) -> Check:
    delta, n = data["budget"]["delta"], data["n_users"]
    return Check(
        "delta", delta < 1 / n, f"{delta:g}; must be below 1/n = {1 / n:.3g}, or one random unit's data may leak"
    )


def _signed(data: Mapping[str, Any], key: str | None) -> Iterable[Check]:
    """Check the signature, and that it is by ``key`` if one is given."""
    signature = data["signature"]
    if signature is None:
        if key is not None:
            yield Check("signature", False, "none: the certificate is not signed")
        return
    try:
        valid = _belongs(signature, data["digest"])
    except ImportError:
        yield Check("signature", key is None, "not checked: install tacitly[signing]")
        return
    wanted = key is None or signature["key"] == key.lower()
    by = f"by {signature['key']}" + ("" if wanted else f", not by {key}")
    yield Check("signature", valid and wanted, by if valid else "does not belong to this text")


def _belongs(signature: Mapping[str, str], digest: str) -> bool:
    """Whether a signature (Ed25519) belongs to a digest and to the public key that it names."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(signature["key"]))
        key.verify(bytes.fromhex(signature["value"]), b"tacitly certificate\n" + digest.encode())
    except (InvalidSignature, ValueError):
        return False
    return True


def _files_match(data: Mapping[str, Any], files: Mapping[str, bytes]) -> Check:
    """Compare published files with their hashes: each must be there, and none that the certificate does not know."""
    found = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    claimed = data["files"]
    wrong = sorted(name for name in {*found, *claimed} if found.get(name) != claimed.get(name))
    message = f"{', '.join(sorted(claimed)) or 'none'}" + (f"; not as certified: {', '.join(wrong)}" if wrong else "")
    return Check("files", bool(claimed) and not wrong, message)
