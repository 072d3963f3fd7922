"""Verification: check a certificate without trusting anything in it.

The text is parsed strictly (every field known, present, and of its type and range), every derived number is computed
again by :mod:`tacitly.privacy.second_opinion`, and the parts are compared with each other. Nothing here uses the
accountant or the classes that wrote the certificate, so an error there is not repeated here.

What verification cannot see: whether the listed releases are complete (pass the ledger), whether they produced this
model (pass the files and the ledger: it records every word of the certificate, and no second statement about the same
model is accepted; what its owner never recorded, it does not know), and whether the sensitivities bound what users sent
(tests and audits check that). Without a ledger and without the key of whoever should have signed it, a
certificate whose numbers are all rewritten consistently is a different certificate: that it was forged cannot be told.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from tacitly.privacy.second_opinion import (
    SENSITIVITY,
    chosen,
    concentrated_of,
    epsilon_of,
    noise_of,
    numeric_epsilon,
    protected,
    slack_of,
)

if TYPE_CHECKING:
    from tacitly.privacy.ledger import Ledger, RunSummary

_TOLERANCE = 1e-6
_CROSS_TOLERANCE = 0.02
_CROSS_RANGE = (0.01, 50.0)
_FACTORS = (2.0, math.sqrt(2.0))
_PLACE = ("entries", "head")
_MODEL = "billboard.safetensors"
_DELTA = 1e-6  # of totals of noisy sums, where the account or the certificate is at δ = 0


@dataclass(frozen=True)
class Check:
    """The result of one check."""

    name: str
    ok: bool
    message: str


@dataclass(frozen=True)
class Verdict:
    """The results of all checks."""

    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Whether every check passed."""
        return all(check.ok for check in self.checks)

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of the checks that did not pass."""
        return tuple(check.name for check in self.checks if not check.ok)

    def __str__(self) -> str:
        return "\n".join(f"{'ok    ' if c.ok else 'FAILED'} {c.name}: {c.message}" for c in self.checks)


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
        data = _read(certificate_json)
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
        checks += _ledger_agrees(data, ledger)
    return Verdict(tuple(checks))


def _digest_matches(data: Mapping[str, Any]) -> Check:
    rest = _writable({key: value for key, value in data.items() if key not in ("digest", "signature")})
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return _same("digest", data["digest"], hashlib.sha256(text.encode()).hexdigest())


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
            "slack": math.isclose(slack, claimed, rel_tol=_TOLERANCE) and not ideal,
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
    yield _close("epsilon", data["epsilon"], epsilon, _TOLERANCE)
    for adjacency, name in SENSITIVITY.items():
        yield _close(f"epsilon_{name}", data[f"epsilon_{name}"], derived[adjacency], _TOLERANCE)
    if not uncertified:
        within = epsilon <= budget["epsilon"] * (1 + _TOLERANCE)
        yield Check("budget", within, f"{epsilon:.6g} of the requested {budget['epsilon']:.6g}")
    for adjacency, name in SENSITIVITY.items():
        pair = (None, None) if uncertified else concentrated_of(releases, adjacency)
        for kind, value in zip(("mu", "rho"), pair, strict=True):
            claimed = data[f"{kind}_{name}"]
            if claimed is None or value is None:
                yield Check(f"{kind}_{name}", claimed is value, f"claimed {claimed}, derived {value}")
            else:
                yield _close(f"{kind}_{name}", claimed, value, _TOLERANCE)
    for adjacency, value in derived.items():
        # At δ = 0, ε is a plain sum, which a grid of losses cannot check.
        if releases and budget["delta"] > 0 and _CROSS_RANGE[0] <= value <= _CROSS_RANGE[1]:
            numeric = numeric_epsilon(releases, adjacency, budget["delta"], near=value)
            yield _close(f"numeric_{SENSITIVITY[adjacency]}", value, numeric, _CROSS_TOLERANCE)


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


def _ledger_agrees(data: Mapping[str, Any], ledger: Ledger) -> Iterable[Check]:
    """Compare a certificate with the runs it comes from: their state, all their rows, and every word that was recorded.

    A model that was refreshed, or fitted in parts, has one run per call; its certificate is recorded in the last. Each
    of these runs named those before it when it was opened, so none of them can be left out, replaced or moved.
    """
    by_name = {run.name: run for run in ledger.runs()}
    names = list(dict.fromkeys(release["run"] for release in data["releases"]))
    runs = [by_name[name] for name in names if name in by_name]
    problems = [f"run {name!r} is not in the ledger" for name in names if name not in by_name]
    problems += [f"run {run.name!r} is {run.state}, not finished" for run in runs if run.state != "finished"]
    problems += [
        f"run {run.name!r} continues {before or 'none'}, the certificate has {names[:place] or 'none'} before it"
        for place, run in enumerate(runs)
        if (before := run.config.get("after", [])) != names[:place]
    ]
    if any(run.certified != (data["mode"] == "certified") for run in runs):
        problems.append(f"mode {data['mode']!r}, but the ledger has a run with certified={data['mode'] != 'certified'}")
    words = ", ".join(repr(name) for name in names)
    yield Check("run", bool(runs) and not problems, "; ".join(problems) or f"{words}, finished")
    rows = [row.to_dict() for run in runs for row in ledger.releases(run.name)]
    agree = bool(rows) and _writable(rows) == _writable(data["releases"])
    yield Check("ledger", agree, f"{len(rows)} rows in the ledger, {len(data['releases'])} releases claimed")
    yield _announced(data, [run.config for run in runs])
    yield from _recorded(data, runs[-1].statements if runs else {}, ledger)


def _announced(data: Mapping[str, Any], configs: list[Mapping[str, Any]]) -> Check:
    """Compare with what runs said of themselves before they spent anything; not every program says all of it."""
    stated = {"algorithm": data["algorithm"], **{name: data["budget"][name] for name in ("adjacency", "delta")}}
    wrong = {name for config in configs for name, value in stated.items() if config.get(name, value) != value}
    units = [config["n_units"] for config in configs if "n_units" in config]
    # The same units may be in several calls, or others in each. (Other programs may write anything there.)
    if not all(type(number) is int for number in units) or (units and not max(units) <= data["n_users"] <= sum(units)):
        wrong.add("n_users")
    return Check("ledger_config", not wrong, f"differ: {', '.join(sorted(wrong))}" if wrong else "as announced")


def _recorded(data: Mapping[str, Any], statements: Mapping[int, Mapping[str, Any]], ledger: Ledger) -> Iterable[Check]:
    """Compare with the entry in which the ledger recorded the certificate: its hash, its words, its totals."""
    account = data["account"]
    if account is None:
        yield Check("ledger_entry", False, "the certificate names no account: it was not saved with a ledger")
        return
    entry = account["entries"]
    known = account["id"] == ledger.id and ledger.hash_at(entry) == account["head"] and entry in statements
    yield Check(
        "ledger_entry", known, f"entry {entry} of account {account['id']}" + ("" if known else ": not in this ledger")
    )
    if not known:
        return
    claimed, recorded = _statement(data), statements[entry]
    differ = sorted(name for name in {*claimed, *recorded} if claimed.get(name) != recorded.get(name))
    yield Check(
        "ledger_words", not differ, f"differ from what was recorded: {', '.join(differ)}" if differ else "as recorded"
    )
    yield _only_statement(data, ledger.runs())
    yield from _totals_follow(data, ledger)


def _only_statement(data: Mapping[str, Any], runs: Iterable[RunSummary]) -> Check:
    """Check that nothing on the account states the same model with other runs: noise makes any two models differ."""
    last, model = data["releases"][-1]["run"], data["files"].get(_MODEL)
    compared = model is not None and data["mode"] == "certified"
    others = [run.name for run in runs if run.name != last and _states(run, model)] if compared else []
    return Check("ledger_files", not others, f"also stated by {others}" if others else "stated by no other run")


def _states(run: RunSummary, model: str) -> bool:
    files = [statement.get("files") for statement in run.statements.values()]
    return any(isinstance(named, Mapping) and named.get(_MODEL) == model for named in files)


def _totals_follow(data: Mapping[str, Any], ledger: Ledger) -> Iterable[Check]:
    """Compare what a certificate says of its account with what the ledger had at the entry that records it."""
    account = data["account"]
    sound, then = all(run.certified for run in ledger.runs()), ledger.standing(account["entries"])
    ceiling = None if then.ceiling is None else asdict(then.ceiling)
    rows = ledger.releases_up_to(account["entries"])
    found = {
        "runs": then.runs,
        "renews": then.renews,
        "period": then.period,
        "ceiling": ceiling,
        **_terms(ceiling or data["budget"], [row.to_dict() for row in rows]),
    }
    wrong = sorted(name for name, value in found.items() if account[name] != value)
    yield Check("account", not wrong, f"differ from the ledger: {', '.join(wrong)}" if wrong else "as in the ledger")
    everything = _together(rows, account, sound)
    yield _close("account_total", account["epsilon"], everything, _TOLERANCE)
    lately = ledger.releases_up_to(account["entries"], since=then.since)
    in_period = everything if lately == rows else _together(lately, account, sound)  # sampled ones take seconds
    yield _close("account_period", account["period_epsilon"], in_period, _TOLERANCE)
    by_now = ledger.releases()
    total = everything if by_now == rows else _together(by_now, account, sound)
    yield Check(
        "ledger_total",
        True,
        f"{account['epsilon']:.6g} when it was certified, {total:.6g} by now ({account['adjacency']}, "
        f"delta = {account['delta']:g})",
    )


def _terms(standing: Mapping[str, Any], releases: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the adjacency and δ at which totals are stated: the ceiling's, or the budget's of an account without."""
    noisy = any(release["event"]["mechanism"] == "gaussian" for release in releases)
    delta = standing["delta"] or (_DELTA if noisy else 0.0)
    return {"adjacency": str(standing["adjacency"]), "delta": delta}


def _together(releases: Iterable[Any], account: Mapping[str, Any], sound: bool) -> float:
    rows = [row.to_dict() for row in releases]
    return epsilon_of(rows, account["adjacency"], account["delta"]) if sound else math.inf


def _statement(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a certificate says in its own words, as the ledger records it."""
    derived = {"format", "digest", "signature", "releases", "certified"} | {
        name for name in data if name.startswith(_NUMBERS)
    }
    stated = {name: value for name, value in data.items() if name not in derived}
    if stated["account"] is not None:
        stated["account"] = {name: value for name, value in stated["account"].items() if name not in _PLACE}
    result: Mapping[str, Any] = _writable(stated)
    return result


def _same(name: str, claimed: str | None, found: str) -> Check:
    return Check(name, claimed == found, f"claimed sha256 {claimed}, found {found}")


def _close(name: str, claimed: float, derived: float, tolerance: float) -> Check:
    ok = claimed == derived or math.isclose(claimed, derived, rel_tol=tolerance, abs_tol=1e-9)
    return Check(name, ok, f"claimed {claimed:.9g}, derived {derived:.9g}")


def _writable(data: Any) -> Any:
    """Convert infinities back to the string that represents them in the text."""
    if isinstance(data, dict):
        return {key: _writable(value) for key, value in data.items()}
    if isinstance(data, list):
        return [_writable(value) for value in data]
    return "inf" if isinstance(data, float) and math.isinf(data) else data


def _read(text: str) -> dict[str, Any]:
    """Parse the text and check every field against its schema."""

    def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) != len(pairs):
            raise ValueError(f"a field occurs twice among {sorted(key for key, _ in pairs)}.")
        return dict(pairs)

    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is not JSON.")

    parsed = json.loads(text, object_pairs_hook=without_duplicates, parse_constant=refuse)
    if isinstance(parsed, dict) and parsed.get("format") != _FORMAT:
        raise ValueError(
            f"the format must be {_FORMAT!r}. Found {parsed.get('format')!r}: use the version of tacitly that wrote it."
        )
    data: dict[str, Any] = _conform("certificate", parsed, _CERTIFICATE)
    return data


def _conform(path: str, value: Any, shape: Any) -> Any:
    """Return ``value`` with infinities parsed; raise with the path of a field that does not have its ``shape``."""
    if isinstance(shape, dict):
        if not isinstance(value, dict) or set(value) != set(shape):
            found = sorted(value) if isinstance(value, dict) else type(value).__name__
            raise ValueError(f"{path} must have exactly the fields {sorted(shape)}. Found {found}.")
        return {key: _conform(f"{path}.{key}", value[key], shape[key]) for key in value}
    if isinstance(shape, _Either):
        known, kind = shape, value.get(shape.field) if isinstance(value, dict) else None
        shape = shape.shapes.get(kind) if isinstance(kind, str) else None
        if shape is None:
            raise ValueError(f"{path}.{known.field} must be one of {tuple(known.shapes)}. Found {kind!r}.")
        return _conform(path, value, shape)
    if isinstance(shape, _Maybe):
        return None if value is None else _conform(path, value, shape.shape)
    if isinstance(shape, list):
        if not isinstance(value, list):
            raise ValueError(f"{path} must be a list. Found {type(value).__name__}.")
        return [_conform(f"{path}[{i}]", entry, shape[0]) for i, entry in enumerate(value)]
    if value == "inf" and shape.infinite:
        return math.inf
    if not shape.holds(value):
        raise ValueError(f"{path} must be {shape.meaning}. Found {value!r}.")
    return value


@dataclass(frozen=True)
class _Either:
    """One of several shapes, identified by the value of one field."""

    field: str
    shapes: Mapping[str, Any]


@dataclass(frozen=True)
class _Maybe:
    """A shape, or null."""

    shape: Any


@dataclass(frozen=True)
class _Leaf:
    meaning: str
    holds: Callable[[Any], bool]
    infinite: bool = False


def _finite(value: Any) -> bool:
    """Whether a value is a number that fits a float: JSON allows 1e999, and integers of any length."""
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


def _number(meaning: str, holds: Callable[[float], bool], *, infinite: bool = False) -> _Leaf:
    return _Leaf(f"a {meaning} finite number", lambda v: _finite(v) and holds(v), infinite)


def _among(*choices: str) -> _Leaf:
    return _Leaf(f"one of {choices}", lambda v: v in choices)


def _count(least: int) -> _Leaf:
    return _Leaf(f"an integer from {least}, below 2^63", lambda v: type(v) is int and least <= v < 2**63)


_TEXT = _Leaf("a string", lambda v: isinstance(v, str))
_FLAG = _Leaf("true or false", lambda v: isinstance(v, bool))
_POSITIVE = _number("positive", lambda v: v > 0)
_NOT_NEGATIVE = _number("not negative", lambda v: v >= 0)
_CLAIM = _number("not negative", lambda v: v >= 0, infinite=True)
_UNIT = _among("user", "row", "label")
_SENSITIVITY = {"zero_out": _POSITIVE, "replace_one": _POSITIVE, "unit": _UNIT}
_GAUSSIAN = {
    "mechanism": _among("gaussian"),
    "sigma": _NOT_NEGATIVE,
    "sensitivity": _SENSITIVITY,
    "sampling_rate": _number("positive, at most one,", lambda v: 0 < v <= 1),
    "slack": _number("not negative, below one,", lambda v: 0 <= v < 1),
}
_SELECTION = {"mechanism": _among("selection"), "scale": _NOT_NEGATIVE, "sensitivity": _SENSITIVITY}
_EVENT = _Either("mechanism", {"gaussian": _GAUSSIAN, "selection": _SELECTION})
_RELEASE = {
    "run": _TEXT,
    "index": _count(0),
    "name": _TEXT,
    "event": _EVENT,
    "noise": _among("exact", "float", "none", "seeded"),
    "grid": _NOT_NEGATIVE,
    "coordinates": _count(1),
    "state": _among("debited", "published"),
    "attempts": _count(1),
}
_BUDGET = {
    "epsilon": _number("positive", lambda v: v > 0, infinite=True),
    "delta": _number("not negative, below one,", lambda v: 0 <= v < 1),
    "adjacency": _among(*SENSITIVITY),
    "unit": _UNIT,
}
_WORDS = _Leaf("null or a string", lambda v: v is None or isinstance(v, str))
_STRINGS = _Leaf("an object of strings", lambda v: isinstance(v, dict) and all(isinstance(t, str) for t in v.values()))
_HEX = _Leaf("64 hexadecimal digits", lambda v: isinstance(v, str) and re.fullmatch("[0-9a-f]{64}", v) is not None)
_NUMBER_OR_NONE = _Leaf("null or a not negative finite number", lambda v: v is None or (_finite(v) and v >= 0))
_ACCOUNT = {
    "id": _TEXT,
    "epsilon": _CLAIM,
    "adjacency": _among(*SENSITIVITY),
    "delta": _number("not negative, below one,", lambda v: 0 <= v < 1),
    "runs": _count(1),
    "period": _TEXT,
    "period_epsilon": _CLAIM,
    "renews": _Leaf("null, yearly, quarterly or monthly", lambda v: v in (None, "yearly", "quarterly", "monthly")),
    "ceiling": _Maybe(_BUDGET),
    "entries": _count(1),
    "head": _HEX,
}
_NUMBERS = ("epsilon", "mu_", "rho_")
_FORMAT = "tacitly certificate 2"
_CERTIFICATE = {
    "format": _among(_FORMAT),
    "algorithm": _TEXT,
    "mode": _among("certified", "paper", "non-private", "seeded"),
    "budget": _BUDGET,
    "releases": [_RELEASE],
    "n_users": _count(1),
    "trust": _TEXT,
    "reasons": [_TEXT],
    "nominal_epsilon": _Leaf("null or a not negative finite number", lambda v: v is None or _CLAIM.holds(v), True),
    "not_covered": [_TEXT],
    "notes": [_TEXT],
    "public": [_TEXT],
    "files": _Leaf(
        "hashes by name of file", lambda v: isinstance(v, dict) and all(_HEX.holds(entry) for entry in v.values())
    ),
    "account": _Maybe(_ACCOUNT),
    "date": _Leaf("a date", lambda v: isinstance(v, str) and re.fullmatch(r"\d{4}-\d\d-\d\d", v) is not None),
    "purpose": _WORDS,
    "curator": _WORDS,
    "region": _WORDS,
    "code": {"version": _TEXT, "sha256": _HEX, "commit": _WORDS},
    "dependencies": _STRINGS,
    "signature": _Maybe({"key": _HEX, "value": _TEXT}),
    **dict.fromkeys(("mu_zero_out", "mu_replace_one", "rho_zero_out", "rho_replace_one"), _NUMBER_OR_NONE),
    **dict.fromkeys(("epsilon", "epsilon_zero_out", "epsilon_replace_one"), _CLAIM),
    "certified": _FLAG,
    "digest": _TEXT,
}
