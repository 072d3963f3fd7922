"""Every flaw of the papers is caught, and no corrected version is."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from tacitly.audit import from_runs

sys.path.insert(0, str(Path(__file__).parents[2]))
from benchmarks.flaws import Case, cases

RUNS = 20_000
CASES = {case.id: case for case in cases()}
FAINT = {"P6", "R3"}  # claims of 0.5 and 0.125: 20,000 runs cannot prove half of that (the benchmark's runs do)


def proved(case: Case, *, flawed: bool) -> float:
    inside, outside = (case.flawed if flawed else case.sound)(np.random.default_rng(5), RUNS)
    bounds = [from_runs(inside, outside, case.delta, confidence=0.999)]
    if case.gaussian:
        bounds.append(from_runs(inside, outside, case.delta, confidence=0.999, gaussian=True))
    return max(bound.epsilon for bound in bounds)


@pytest.mark.parametrize("name", CASES)
def test_a_flaw_is_proved_to_cost_more_than_it_claims(name: str) -> None:
    case = CASES[name]
    found = proved(case, flawed=True)
    assert found > case.claim
    if case.exact is not None:
        assert case.claim < found <= case.exact


@pytest.mark.parametrize("name", CASES)
def test_the_mended_version_keeps_its_claim_and_the_attack_has_power(name: str) -> None:
    case = CASES[name]
    found = proved(case, flawed=False)
    assert found <= case.claim
    if case.tight and name not in FAINT:
        assert found > case.claim / 2


def test_the_clip_that_turns_negative_numbers_around_would_show() -> None:
    """M4: x·min(1, ρ/x) turns −0.3 into 1. Ours leaves values within the bound unchanged."""
    from tacitly.privacy.clipping import clip

    def printed(x: float, bound: float) -> float:
        return x * min(1.0, bound / x)

    assert printed(-0.3, 1.0) == 1.0
    assert clip(np.array([-0.3]), 1.0)[0] == -0.3
