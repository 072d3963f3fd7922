"""The certificate: the public claim about one fitted model.

A certificate contains a list of releases and the numbers that follow from it. Every number that can be derived (ε under
either adjacency) is derived here from the releases and never passed in, so the claim always matches the noise that was
drawn. Anyone who has the file can derive it again (:mod:`tacitly.privacy.verification`).

Why ε is valid. Users' rows influence the public model only through the releases (the ledger guarantees that all are
listed). Releases compose adaptively, and everything else in the model is computed from them, which is post-processing.
This argument does not hold for a run with a reason not to be certified (no noise, seeded noise, constants from a paper
that do not bound the sensitivity), so its ε is infinite. The ε that such a paper states is kept separately as
``nominal_epsilon`` and is not a claim.
"""

from __future__ import annotations

import hashlib
import json
import math
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from fractions import Fraction
from functools import cache, cached_property
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Any

from tacitly.privacy.accounting import compose, concentrated
from tacitly.privacy.guarantee import Adjacency, Budget, Unit
from tacitly.privacy.release import Release, canonical_json, check_fields, plain

FORMAT = "tacitly certificate 2"
"""What a certificate's file says of itself. One of another format is refused."""

MODES = ("certified", "paper", "non-private", "seeded")
NOT_COVERED = (
    "heads, and predictions made with them, that are shown to others",
    "any metric or average computed from private data outside the ledger",
    "hyper-parameters tuned on the same data",
    "side channels, such as how long a computation takes",
    "runs on other accounts, a person who is at two sites, two ids of one person",
)
NO_ACCOUNT = "every other run on the same people: this run has no account that would add them up"
PUBLIC = {
    Adjacency.ZERO_OUT: "the list of {unit}s, and so their number n = {n}: that somebody is in the table is not hidden",
    Adjacency.REPLACE_ONE: "the number of {unit}s, n = {n}",
}
FLOAT_NOISE = (
    "floating-point noise is exact only if SciPy's normal quantile function has a relative error below 2^-43 (2^-50 is "
    "what its documentation states)"
)
_DERIVED = (
    "certified",
    "epsilon",
    "epsilon_zero_out",
    "epsilon_replace_one",
    "mu_zero_out",
    "mu_replace_one",
    "rho_zero_out",
    "rho_replace_one",
)
_PLACE = ("entries", "head")  # of an account: where in its chain the certificate is recorded
_LIBRARIES = ("numpy", "scipy", "numba", "opendp", "dp-accounting", "safetensors", "torch")


@cache
def code() -> dict[str, str | None]:
    """Return which code this is: its version, a hash of its source files, and the commit where the installer told."""
    files = sorted(Path(__file__).parents[1].rglob("*.py"))
    names = "".join(f"{path.relative_to(Path(__file__).parents[1]).as_posix()} {_sha256(path)}\n" for path in files)
    try:
        origin = json.loads(distribution("tacitly").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        origin = {}
    return {
        "version": _version("tacitly") or "unknown",
        "sha256": hashlib.sha256(names.encode()).hexdigest(),
        "commit": origin.get("vcs_info", {}).get("commit_id"),
    }


@cache
def dependencies() -> dict[str, str]:
    """Return the versions of Python and of the libraries that compute; those that are not installed are left out."""
    found = {name: _version(name) for name in _LIBRARIES}
    return {"python": platform.python_version(), **{name: text for name, text in found.items() if text is not None}}


@cache
def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def today() -> str:
    """Return the date in UTC."""
    return datetime.now(UTC).strftime("%Y-%m-%d")


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """The releases of a run, their privacy cost for one unit, and what is not covered.

    ``budget`` is the requested guarantee. ``trust`` states who sees what. ``reasons`` state why a run is not certified;
    they are empty if and only if the mode is ``certified``. ``public`` lists information that is not protected because
    it is treated as public. ``files`` are the SHA-256 hashes of the files published with the certificate. ``account``
    states the total cost of all runs on the ledger's account, and the entry at which this certificate is recorded; None
    for a run without an account.

    >>> import numpy as np, tacitly
    >>> rows = np.random.default_rng(0).normal(size=(2000, 3)) * [5.0, 1.0, 1.0]
    >>> certificate = tacitly.FedPower(1, epsilon=1.0).fit(rows).certificate_
    >>> certificate.certified, round(certificate.epsilon, 3), str(certificate.unit)
    (True, 1.0, 'row')
    >>> Certificate.from_json(certificate.to_json()) == certificate
    True
    """

    algorithm: str
    mode: str
    budget: Budget
    releases: tuple[Release, ...]
    n_users: int
    trust: str
    reasons: tuple[str, ...] = ()
    nominal_epsilon: float | None = None
    not_covered: tuple[str, ...] = NOT_COVERED
    notes: tuple[str, ...] = ()
    public: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    account: Mapping[str, Any] | None = None
    date: str = field(default_factory=today)
    purpose: str | None = None
    curator: str | None = None
    region: str | None = None
    code: Mapping[str, str | None] = field(default_factory=code)
    dependencies: Mapping[str, str] = field(default_factory=dependencies)
    signature: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        for name in ("releases", "reasons", "not_covered", "notes", "public"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if self.mode not in MODES:
            raise ValueError(f"mode must be one of {MODES}. Found {self.mode!r}.")
        if self.n_users < 1:
            raise ValueError(f"n_users must be at least 1. Found {self.n_users!r}.")
        if (self.mode == "certified") != (not self.reasons):
            raise ValueError(
                "reasons must be given if and only if mode is not 'certified'. "
                f"Found mode {self.mode!r} with reasons {self.reasons}."
            )
        bare = [release.name for release in self.releases if not release.cost.private]
        if bare and self.mode == "certified":
            raise ValueError(f"a certified run must add fresh noise to every release. Found none on {bare}.")
        if foreign := {release.event.sensitivity.unit for release in self.releases} - {self.budget.unit}:
            raise ValueError(
                f"every release must protect the budget's unit, {self.budget.unit}. Found {sorted(foreign)}."
            )
        if self.account is None:
            self._add("not_covered", NO_ACCOUNT)
        self._add("public", PUBLIC[self.adjacency].format(unit=self.unit, n=self.n_users))
        if any(release.noise == "float" for release in self.releases):
            self._add("not_covered", FLOAT_NOISE)
        if large := large_delta(self.budget.delta, self.n_users):
            self._add("notes", large)

    @cached_property
    def epsilon_zero_out(self) -> float:
        """ε under zero-out: one unit's contribution becomes zero."""
        return self._epsilon(Adjacency.ZERO_OUT)

    @cached_property
    def epsilon_replace_one(self) -> float:
        """ε under replace-one: one unit's data become arbitrary other data."""
        return self._epsilon(Adjacency.REPLACE_ONE)

    @property
    def epsilon(self) -> float:
        """ε under the requested adjacency; infinite if there is a reason not to certify."""
        zero_out = self.adjacency is Adjacency.ZERO_OUT
        return self.epsilon_zero_out if zero_out else self.epsilon_replace_one

    @property
    def delta(self) -> float:
        """δ at which every ε is stated."""
        return self.budget.delta

    @property
    def adjacency(self) -> Adjacency:
        """Which data sets count as neighbours."""
        return self.budget.adjacency

    @property
    def unit(self) -> Unit:
        """The unit whose data are protected."""
        return self.budget.unit

    @property
    def mu_zero_out(self) -> float | None:
        """μ of Gaussian differential privacy under zero-out; None where choices or sampling have no such number."""
        return self._concentrated(Adjacency.ZERO_OUT)[0]

    @property
    def mu_replace_one(self) -> float | None:
        """The same under replace-one."""
        return self._concentrated(Adjacency.REPLACE_ONE)[0]

    @property
    def rho_zero_out(self) -> float | None:
        """ρ of zero-concentrated differential privacy under zero-out; None where sampling has no such number."""
        return self._concentrated(Adjacency.ZERO_OUT)[1]

    @property
    def rho_replace_one(self) -> float | None:
        """The same under replace-one."""
        return self._concentrated(Adjacency.REPLACE_ONE)[1]

    def epsilon_at(self, delta: float, adjacency: str | None = None) -> float:
        """Return ε at any other δ; it follows from the releases."""
        if self.reasons:
            return math.inf
        return compose([release.cost for release in self.releases], Adjacency(adjacency or self.adjacency), delta)

    @property
    def billboard_sha256(self) -> str | None:
        """The hash of the published arrays, once they are saved."""
        return self.files.get("billboard.safetensors")

    def statement(self) -> dict[str, Any]:
        """Return what the ledger records of the certificate: all fields but releases, signature and derived numbers."""
        left_out = ("releases", "signature", "account")
        stated = {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name not in left_out}
        account = None if self.account is None else {k: v for k, v in self.account.items() if k not in _PLACE}
        stated |= {"budget": asdict(self.budget), "account": account}
        return dict(json.loads(canonical_json(stated)))

    @property
    def certified(self) -> bool:
        """Whether the run claims a finite ε."""
        return not self.reasons and math.isfinite(self.epsilon)

    def summary(self) -> str:
        """Return the claim in one line."""
        return f"{self.algorithm}: {self._claim()}; unit: {self.unit}; {self._count()}"

    def brief(self) -> str:
        """Return the claim, who is trusted, and any reason not to certify: a few lines."""
        lines = [f"{self._claim()}; unit: {self.unit}; {self._count()}"]
        if self.account is not None and self.certified:
            lines.append(f"  {self.totals()}")
        lines += [f"  not certified because: {reason}" for reason in self._objections()]
        lines += [f"  note: {note}" for note in self.notes if note.startswith("δ")]
        missing = f"not covered: {len(self.not_covered)} things (tacitly certificate MODEL)"
        lines.append(f"  trust: {self.trust.partition(':')[0]}; {missing}")
        return "\n".join(lines)

    def __str__(self) -> str:
        kinds = ", ".join(sorted({release.noise for release in self.releases})) or "none"
        lines = [f"{self._claim()}; unit: {self.unit}; {self._count()}; noise: {kinds}"]
        if self.account is not None:
            lines.append(f"  {self.totals()}")
        lines.append(
            f"  {self.algorithm}, {self.n_users} {self.unit}s, mode: {self.mode}, tacitly {self.code['version']}, "
            f"{self.date}"
        )
        lines.append(f"  trust: {self.trust}")
        lines += [f"  public: {item}" for item in self.public]
        lines += [f"  not certified because: {reason}" for reason in self._objections()]
        lines += [f"  not covered: {item}" for item in self.not_covered]
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)

    def totals(self) -> str:
        """Return the cost of this model, and the total cost of everything on its account."""
        what = "this evaluation" if self.algorithm.startswith("evaluation") else "this model"
        if self.account is None:
            return f"{what}: {shown(self.epsilon)}; no account adds up other runs on the same people"
        account = self.account
        adjacency, delta = account["adjacency"], float(account["delta"])
        own = self.epsilon if adjacency == self.adjacency and delta == self.delta else self.epsilon_at(delta, adjacency)
        text = f"{what}: {shown(own)}; everything on this account: {shown(float(account['epsilon']))}"
        if account["renews"] is not None:
            text += f", of it in {account['period']}: {shown(float(account['period_epsilon']))}"
        if account["ceiling"] is not None:
            text += f"; ceiling: {float(account['ceiling']['epsilon']):g}"
        return f"{text} ({adjacency}, δ = {delta:g})"

    @property
    def digest(self) -> str:
        """The SHA-256 of everything but the signature, which signs it."""
        content = self._content()
        del content["signature"]
        return _digest(content)

    def to_json(self) -> str:
        """Return JSON with all fields, the derived numbers, a digest of both, and the signature."""
        content = {**self._content(), "digest": self.digest}
        return json.dumps(plain(content), indent=2, ensure_ascii=False) + "\n"

    def _content(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            **{entry.name: getattr(self, entry.name) for entry in fields(self)},
            **{name: getattr(self, name) for name in _DERIVED},
            "budget": asdict(self.budget),
            "releases": [release.to_dict() for release in self.releases],
        }

    @classmethod
    def from_json(cls, text: str) -> Certificate:
        """Read the output of :meth:`to_json`; derived numbers are computed again, not read."""
        data = json.loads(text)
        if not isinstance(data, dict):
            raise ValueError(f"a certificate must be a JSON object. Found {type(data).__name__}.")
        if data.get("format") != FORMAT:
            raise ValueError(
                f"a certificate must have the format {FORMAT!r}. Found {data.get('format')!r}: use the version of "
                "tacitly that wrote it."
            )
        names = {entry.name for entry in fields(cls)}
        check_fields("certificate", data, names | {*_DERIVED, "digest", "format"})
        signature = data.pop("signature")
        if data.pop("digest") != _digest(data):
            raise ValueError("the certificate was changed after it was written: its digest does not match.")
        kept = {name: data[name] for name in names - {"signature"}} | {"signature": signature}
        try:
            check_fields("budget", data["budget"], {entry.name for entry in fields(Budget)})
            kept["budget"] = Budget(**{**data["budget"], "epsilon": float(data["budget"]["epsilon"])})
            kept["releases"] = tuple(Release.from_dict(release) for release in data["releases"])
            if kept["nominal_epsilon"] is not None:
                kept["nominal_epsilon"] = float(kept["nominal_epsilon"])
            return cls(**kept)
        except (TypeError, AttributeError, KeyError, OverflowError) as error:
            raise ValueError(f"a field of the certificate does not have its type: {error}.") from error

    def _epsilon(self, adjacency: Adjacency) -> float:
        if self.reasons:
            return math.inf
        return compose([release.cost for release in self.releases], adjacency, self.delta)

    def _concentrated(self, adjacency: Adjacency) -> tuple[float | None, float | None]:
        if self.reasons:
            return None, None
        return concentrated([release.cost for release in self.releases], adjacency)

    def _claim(self) -> str:
        if not self.certified:
            nominal = "" if self.nominal_epsilon is None else f"; nominal ε = {shown(self.nominal_epsilon)}"
            return f"NOT CERTIFIED{nominal}"
        zero_out, replace_one = shown(self.epsilon_zero_out), shown(self.epsilon_replace_one)
        return f"ε = {zero_out} (zero-out), {replace_one} (replace-one) at δ = {self.delta:g}"

    def _objections(self) -> tuple[str, ...]:
        if self.certified or self.reasons:
            return self.reasons
        return (f"the releases have no finite ε at δ = {self.delta:g} under {self.adjacency}",)

    def _count(self) -> str:
        return f"{len(self.releases)} release{'' if len(self.releases) == 1 else 's'}"

    def _add(self, name: str, line: str) -> None:
        if line not in getattr(self, name):
            object.__setattr__(self, name, (*getattr(self, name), line))


def large_delta(delta: float, n: int) -> str | None:
    """Return a warning if δ is too large to mean anything for n units; None if it is not."""
    if delta < 1 / n:
        return None
    return (
        f"δ = {delta:g} is not below 1/n = {1 / n:.3g}: a mechanism that publishes the data of one random unit could "
        "satisfy it"
    )


def shown(epsilon: float) -> str:
    """Format ε for display: two decimals (three significant digits below 0.1), rounded up, never down.

    >>> shown(1.0), shown(1.000001), shown(0.00521), shown(math.inf)
    ('1.00', '1.01', '0.00521', '∞')
    """
    if math.isinf(epsilon):
        return "∞"
    if epsilon == 0:
        return "0"
    places = 2 if epsilon >= 0.1 else 2 - math.floor(math.log10(epsilon))
    # In fractions, because a product of floats could round down. The error of bisection (a billionth of ε, or a
    # thousandth of the last digit) does not raise that digit.
    exact = Fraction(epsilon) * 10**places
    steps = math.ceil(exact - min(exact / 10**9, Fraction(1, 1000)))
    return f"{steps // 10**places}.{steps % 10**places:0{places}d}"


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(canonical_json(content).encode()).hexdigest()
