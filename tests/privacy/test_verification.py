"""Verification: what holds passes; every edit is caught by the check that should catch it."""

from __future__ import annotations

import ast
import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.privacy import second_opinion, verification
from tacit.privacy.accounting import compose, delta_of, mu_of
from tacit.privacy.certificate import Certificate
from tacit.privacy.guarantee import Adjacency, Budget, GaussianEvent, Sensitivity
from tacit.privacy.ledger import Ledger
from tacit.privacy.verification import verify

BUDGET = Budget(epsilon=1.0, delta=1e-6)
BILLBOARD = b"the public state"
GRID, COORDINATES, RELEASES = 2.0**-20, 16, 5


def fill(ledger: Ledger, *, noise: str = "exact", sigma: float | None = None, rate: float = 1.0) -> None:
    """Make one run of five releases that spend the budget (or have the noise given)."""
    run = ledger.run("fit", config={})
    for index in range(RELEASES):
        clip = 1.0 + index / 10
        scale = math.sqrt(RELEASES) / mu_of(0.999, BUDGET.delta) if sigma is None else sigma
        spread = clip * scale
        event = GaussianEvent(
            sigma=spread,
            sensitivity=Sensitivity.of_clip(clip, acute=index == 0),
            sampling_rate=rate,
            slack=200 * COORDINATES * (GRID / spread) ** 2 if spread else 0.0,
        )
        run.release(
            f"round {index}",
            event,
            lambda: np.zeros(COORDINATES),
            noise=noise,
            grid=GRID,
            coordinates=COORDINATES,
        )
    run.finish()


def certify(ledger: Ledger, **changes: Any) -> Certificate:
    fields = {
        "algorithm": "PrivateFedRep",
        "mode": "certified",
        "budget": BUDGET,
        "releases": tuple(ledger.releases("fit")),
        "n_users": 1000,
        "trust": "central",
        "billboard_sha256": hashlib.sha256(BILLBOARD).hexdigest(),
        **changes,
    }
    return Certificate(**fields)


@pytest.fixture(scope="module")
def ledger() -> Ledger:
    ledger = Ledger(ceiling=BUDGET)
    fill(ledger)
    return ledger


@pytest.fixture(scope="module")
def text(ledger: Ledger) -> str:
    return certify(ledger).to_json()


def edited(text: str, edit: Callable[[dict[str, Any]], object], *, reseal: bool = True) -> str:
    """Change a certificate and, unless told not to, forge the digest as well."""
    data = json.loads(text)
    edit(data)
    if reseal:
        del data["digest"]
        sealed = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        data["digest"] = hashlib.sha256(sealed.encode()).hexdigest()
    return json.dumps(data)


def test_an_untouched_certificate_passes_every_check(text: str, ledger: Ledger) -> None:
    verdict = verify(text, billboard=BILLBOARD, ledger=ledger)
    assert verdict.ok, str(verdict)
    assert [check.name for check in verdict.checks] == [
        "well-formed",
        "digest",
        "published",
        "order",
        "sensitivity",
        "unit",
        "slack",
        "marking",
        "epsilon",
        "epsilon_zero_out",
        "epsilon_replace_one",
        "budget",
        "numeric_zero_out",
        "numeric_replace_one",
        "billboard",
        "ledger",
    ]


def test_resealing_alone_changes_nothing(text: str) -> None:
    assert verify(edited(text, lambda data: None)).ok


def event(data: dict[str, Any], index: int = 1) -> dict[str, Any]:
    return data["releases"][index]["event"]


BOTH = {"epsilon", "epsilon_zero_out", "epsilon_replace_one"}
EDITS: dict[str, tuple[Callable[[dict[str, Any]], object], set[str]]] = {
    "epsilon": (lambda d: d.update(epsilon=0.5), {"epsilon"}),
    "epsilon a little": (lambda d: d.update(epsilon=d["epsilon"] * (1 - 1e-5)), {"epsilon"}),
    "replace-one epsilon": (lambda d: d.update(epsilon_replace_one=1.0), {"epsilon_replace_one"}),
    "infinite epsilon": (lambda d: d.update(epsilon="inf"), {"epsilon", "marking"}),
    "sigma": (lambda d: event(d).update(sigma=event(d)["sigma"] * 1.01), {"slack", *BOTH}),
    "zero-out sensitivity": (
        lambda d: event(d)["sensitivity"].update(zero_out=1.09),
        {"sensitivity", "epsilon", "epsilon_zero_out"},
    ),
    "replace-one sensitivity": (
        lambda d: event(d)["sensitivity"].update(replace_one=1.6),
        {"epsilon_replace_one"},
    ),
    "impossible sensitivity": (
        lambda d: event(d)["sensitivity"].update(replace_one=0.6),
        {"sensitivity", "epsilon_replace_one"},
    ),
    "unit of a release": (lambda d: event(d)["sensitivity"].update(unit="row"), {"unit"}),
    "unit of the budget": (lambda d: d["budget"].update(unit="label"), {"unit"}),
    "last release": (lambda d: d["releases"].pop(), BOTH),
    "middle release": (lambda d: d["releases"].pop(2), {"order", *BOTH}),
    "adjacency": (lambda d: d["budget"].update(adjacency="replace-one"), {"epsilon", "budget"}),
    "delta": (lambda d: d["budget"].update(delta=1e-7), {"budget", *BOTH}),
    "budget": (lambda d: d["budget"].update(epsilon=0.9), {"budget"}),
    "grid": (lambda d: d["releases"][0].update(grid=2.0**-10), {"slack", *BOTH}),
    "grid away": (lambda d: d["releases"][0].update(grid=0), {"slack"}),
    "coordinates": (lambda d: d["releases"][0].update(coordinates=17), {"slack"}),
    "slack": (lambda d: event(d).update(slack=0), {"slack"}),
    "state": (lambda d: d["releases"][3].update(state="debited"), {"published"}),
    "certified flag": (lambda d: d.update(certified=False), {"marking"}),
    "mode": (lambda d: d.update(mode="paper"), {"marking", *BOTH}),
    "mode and flag": (lambda d: d.update(mode="paper", certified=False), {"marking", *BOTH}),
    "reason": (lambda d: d.update(reasons=["none"]), {"marking", *BOTH}),
    "seeded": (lambda d: d["releases"][0].update(noise="seeded"), {"marking", "budget", *BOTH}),
    "no noise": (lambda d: d["releases"][0].update(noise="none"), {"marking", "budget", *BOTH}),
    "no sigma": (lambda d: event(d).update(sigma=0), {"marking", "budget", *BOTH}),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_is_caught_by_its_check_even_with_a_forged_digest(text: str, name: str) -> None:
    edit, expected = EDITS[name]
    verdict = verify(edited(text, edit))
    assert set(verdict.failed) - {"numeric_zero_out", "numeric_replace_one"} == expected, str(verdict)
    assert set(verify(edited(text, edit, reseal=False)).failed) >= {"digest", *expected}


@pytest.mark.parametrize("field", ["trust", "algorithm", "version"])
def test_an_edit_of_words_is_caught_by_the_digest(text: str, field: str) -> None:
    assert verify(edited(text, lambda d: d.update({field: "x"}), reseal=False)).failed == ("digest",)


@pytest.mark.parametrize(
    ("edit", "place"),
    [
        (lambda d: d.update(extra=1), "certificate must have exactly"),
        (lambda d: d.pop("notes"), "certificate must have exactly"),
        (lambda d: d["releases"][0].pop("grid"), r"releases\[0\] must have exactly"),
        (lambda d: event(d).update(seed=1), r"releases\[1\].event must have exactly"),
        (lambda d: event(d).update(sigma=-1), "sigma must be a not negative number"),
        (lambda d: event(d).update(sigma="inf"), "sigma must be a not negative number"),
        (lambda d: event(d).update(sigma=True), "sigma must be a not negative number"),
        (lambda d: event(d).update(sampling_rate=0), "sampling_rate must be"),
        (lambda d: event(d).update(mechanism="laplace"), "mechanism must be one of"),
        (lambda d: d["releases"][0].update(coordinates=1.5), "coordinates must be a whole number"),
        (lambda d: d["budget"].update(delta=1), "delta must be"),
        (lambda d: d.update(epsilon="nan"), "epsilon must be"),
        (lambda d: d.update(epsilon=math.nan), "NaN is not JSON"),
        (lambda d: d.update(epsilon=math.inf), "Infinity is not JSON"),
        (lambda d: d.update(mode="trusted"), "mode must be one of"),
        (lambda d: d.update(releases={}), "releases must be a list"),
        (lambda d: d.update(certified=1), "certified must be true or false"),
    ],
)
def test_a_field_out_of_place_is_named(text: str, edit: Callable[[dict[str, Any]], object], place: str) -> None:
    verdict = verify(edited(text, edit))
    assert verdict.failed == ("well-formed",)
    with pytest.raises(AssertionError, match=place):
        raise AssertionError(verdict.checks[0].message)


@pytest.mark.parametrize("broken", ["", "{", "[]", "null", '{"epsilon": 1, "epsilon": 2}', "[" * 100_000])
def test_what_is_not_a_certificate_is_a_verdict_not_a_crash(broken: str) -> None:
    assert verify(broken).failed == ("well-formed",)


def test_the_billboard_must_be_the_one_certified(text: str, ledger: Ledger) -> None:
    assert verify(text, billboard=BILLBOARD + b"!").failed == ("billboard",)
    without = certify(ledger, billboard_sha256=None).to_json()
    assert verify(without).ok
    assert verify(without, billboard=BILLBOARD).failed == ("billboard",)


def test_the_ledger_shows_a_release_left_out_consistently(ledger: Ledger) -> None:
    partial = certify(ledger, releases=tuple(ledger.releases("fit")[:-1])).to_json()
    assert verify(partial).ok
    assert verify(partial, ledger=ledger).failed == ("ledger",)


def test_the_ledger_of_another_run_does_not_agree(text: str) -> None:
    with Ledger() as other:
        assert verify(text, ledger=other).failed == ("ledger",)


@pytest.mark.parametrize(
    ("noise", "sigma", "mode"),
    [("none", 0.0, "non-private"), ("seeded", 9.0, "seeded"), ("exact", 9.0, "paper")],
)
@pytest.mark.parametrize("asked", [1.0, math.inf])
def test_what_is_uncertified_and_says_so_passes(noise: str, sigma: float, mode: str, asked: float) -> None:
    budget = replace(BUDGET, epsilon=asked)
    with Ledger() as ledger:
        fill(ledger, noise=noise, sigma=sigma)
        claim = certify(ledger, mode=mode, reasons=("asked for",), budget=budget, nominal_epsilon=asked)
        verdict = verify(claim.to_json(), ledger=ledger)
        assert verdict.ok, str(verdict)
        pretending = edited(claim.to_json(), lambda d: d.update(epsilon=0.5, certified=True))
        assert set(verify(pretending).failed) == {"marking", "epsilon"}


def test_noise_without_a_limit_on_epsilon_is_still_certified() -> None:
    with Ledger(ceiling=Budget(epsilon=math.inf, delta=1e-6)) as ledger:
        fill(ledger)
        claim = certify(ledger, budget=replace(BUDGET, epsilon=math.inf))
        assert claim.certified
        assert verify(claim.to_json(), ledger=ledger).ok


def test_an_empty_certificate_passes(ledger: Ledger) -> None:
    assert verify(certify(ledger, releases=()).to_json()).ok


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_sampled_releases_are_derived_from_loss_distributions(adjacency: Adjacency) -> None:
    with Ledger() as ledger:
        fill(ledger, noise="float", sigma=3.0, rate=0.2)
        claim = certify(ledger, budget=Budget(epsilon=20.0, delta=1e-6, adjacency=adjacency))
    verdict = verify(claim.to_json())
    assert verdict.ok, str(verdict)
    unsampled = edited(claim.to_json(), lambda d: [r["event"].update(sampling_rate=1) for r in d["releases"]])
    assert set(verify(unsampled).failed) >= BOTH


def plain(events: list[GaussianEvent], grid: float, coordinates: int) -> list[dict[str, Any]]:
    """Releases as a certificate lists them."""
    return [
        {
            "event": json.loads(json.dumps(e.to_dict())),
            "noise": "exact",
            "grid": grid,
            "coordinates": coordinates,
        }
        for e in events
    ]


@settings(max_examples=150, deadline=None)
@given(
    ratios=st.lists(st.tuples(st.floats(1e-3, 5.0), st.floats(1.0, 2.0), st.floats(1e-3, 1e3)), min_size=1, max_size=8),
    step=st.sampled_from([0.0, 1e-9, 1e-6, 1e-4]),
    coordinates=st.integers(1, 1000),
    exponent=st.floats(2.0, 12.0),
    adjacency=st.sampled_from(list(Adjacency)),
)
def test_both_accountants_agree_to_nine_digits(
    ratios: list[tuple[float, float, float]],
    step: float,
    coordinates: int,
    exponent: float,
    adjacency: Adjacency,
) -> None:
    grid = step * min(clip / ratio for ratio, _, clip in ratios)
    events = [
        GaussianEvent(
            sigma=clip / ratio,
            sensitivity=Sensitivity(zero_out=clip, replace_one=min(factor * clip, 2 * clip)),
            slack=200 * coordinates * (grid * ratio / clip) ** 2,
        )
        for ratio, factor, clip in ratios
    ]
    delta = 10.0**-exponent
    ours = compose(events, adjacency, delta)
    theirs = second_opinion.epsilon_of(plain(events, grid, coordinates), str(adjacency), delta)
    assert theirs == pytest.approx(ours, rel=1e-9, abs=1e-11)


@settings(max_examples=200, deadline=None)
@given(mu=st.floats(1e-4, 60.0), fraction=st.floats(0.0, 1.0))
def test_both_profiles_agree(mu: float, fraction: float) -> None:
    epsilon = fraction * (mu * mu / 2 + 8 * mu)
    ours, theirs = delta_of(mu, epsilon), second_opinion.gaussian_delta(mu, epsilon)
    assert theirs == pytest.approx(ours, rel=1e-9, abs=1e-16)


def test_the_mills_ratio_is_continuous_where_its_formulas_meet() -> None:
    below, above = second_opinion._mills(math.nextafter(4.0, 0.0)), second_opinion._mills(4.0)
    assert above == pytest.approx(below, rel=1e-14)


def test_noise_too_small_to_matter_is_infinite_not_an_error() -> None:
    tiny = GaussianEvent(sigma=5e-324, sensitivity=Sensitivity.of_clip(1.0))
    assert second_opinion.epsilon_of(plain([tiny], 0.0, 1), "zero-out", 1e-6) == math.inf


def test_a_wrong_accountant_does_not_convince_its_own_verifier(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    from tacit.privacy import certificate

    def halved(events, adjacency, delta):
        return compose(events, adjacency, delta) / 2

    monkeypatch.setattr(certificate, "compose", halved)
    assert set(verify(certify(ledger).to_json()).failed) == BOTH


@pytest.mark.parametrize("module", [verification, second_opinion])
def test_the_verifier_shares_no_code_with_the_accountant(module: Any) -> None:
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    for_types = {id(n) for top in tree.body if isinstance(top, ast.If) for n in ast.walk(top)}
    imported = {
        node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and id(node) not in for_types and node.module
    }
    assert {name for name in imported if name.startswith("tacit")} <= {"tacit.privacy.second_opinion"}
