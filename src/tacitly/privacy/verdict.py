"""The result of verifying a certificate: named checks, each passed or not, with a message."""

from __future__ import annotations

import math
from dataclasses import dataclass

TOLERANCE = 1e-6
"""Relative difference allowed between a claimed number and a derived one."""


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


def same(name: str, claimed: str | None, found: str) -> Check:
    """Compare two hashes."""
    return Check(name, claimed == found, f"claimed sha256 {claimed}, found {found}")


def close(name: str, claimed: float, derived: float, tolerance: float) -> Check:
    """Compare a claimed number with a derived one."""
    ok = claimed == derived or math.isclose(claimed, derived, rel_tol=tolerance, abs_tol=1e-9)
    return Check(name, ok, f"claimed {claimed:.9g}, derived {derived:.9g}")
