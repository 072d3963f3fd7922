"""The certificate: its numbers follow from its releases, and an uncertified run makes no claim."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from tacitly.privacy.accounting import compose, mu_of
from tacitly.privacy.certificate import FLOAT_NOISE, NO_ACCOUNT, NOT_COVERED, Certificate, shown
from tacitly.privacy.guarantee import Adjacency, Budget, GaussianEvent, Sensitivity, Unit
from tacitly.privacy.release import Release
from tacitly.privacy.verification import verify

BUDGET = Budget(epsilon=1.0, delta=1e-6)
SIGMA = math.sqrt(7) / mu_of(1.0, 1e-6)
GRID = 2.0**-30


def release(index: int, *, noise: str = "exact", sigma: float = SIGMA, unit: Unit = Unit.USER) -> Release:
    slack = 200 * 16 * (GRID / sigma) ** 2 if sigma else 0.0
    event = GaussianEvent(sigma=sigma, sensitivity=Sensitivity.of_clip(1.0, unit=unit), slack=slack)
    return Release(
        run="fit",
        index=index,
        name=f"round {index}",
        event=event,
        noise=noise,
        grid=GRID,
        coordinates=16,
        state="published",
        attempts=1,
    )


def certificate(**changes: object) -> Certificate:
    fields = {
        "algorithm": "PrivateFedRep",
        "mode": "certified",
        "budget": BUDGET,
        "releases": tuple(release(index) for index in range(7)),
        "n_users": 1000,
        "trust": "the server sees clipped contributions, everybody sees the billboard",
        **changes,
    }
    return Certificate(**fields)


def uncertified(**changes: object) -> Certificate:
    return certificate(**{"mode": "paper", "reasons": ("V2: constants of the paper",), **changes})


def test_epsilon_follows_from_the_releases_under_each_adjacency() -> None:
    claim = certificate()
    events = [row.event for row in claim.releases]
    assert claim.epsilon == claim.epsilon_zero_out == compose(events, Adjacency.ZERO_OUT, 1e-6)
    assert claim.epsilon_replace_one == compose(events, Adjacency.REPLACE_ONE, 1e-6)
    assert claim.epsilon == pytest.approx(1.0, rel=1e-6)
    assert claim.certified
    assert (claim.delta, claim.unit, claim.adjacency) == (1e-6, Unit.USER, Adjacency.ZERO_OUT)


def test_epsilon_is_stated_under_the_adjacency_asked_for() -> None:
    claim = certificate(budget=replace(BUDGET, adjacency=Adjacency.REPLACE_ONE))
    assert claim.epsilon == claim.epsilon_replace_one > 2.0


def test_a_reason_against_a_claim_makes_it_infinite_and_keeps_the_papers_number_apart() -> None:
    claim = uncertified(nominal_epsilon=4.0)
    assert not claim.certified
    assert claim.epsilon == claim.epsilon_zero_out == claim.epsilon_replace_one == math.inf
    assert claim.nominal_epsilon == 4.0


@pytest.mark.parametrize(("noise", "sigma", "mode"), [("none", 0.0, "non-private"), ("seeded", SIGMA, "seeded")])
def test_a_certified_run_puts_fresh_noise_on_everything(noise: str, sigma: float, mode: str) -> None:
    rows = (release(0), release(1, noise=noise, sigma=sigma))
    with pytest.raises(ValueError, match=r"Found none on \['round 1'\]"):
        certificate(releases=rows)
    claim = certificate(releases=rows, mode=mode, reasons=("asked for",))
    assert claim.epsilon == math.inf


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mode": "private"}, "mode must be one of"),
        ({"mode": "paper"}, "reasons must be given if and only if"),
        ({"reasons": ("V2",)}, "reasons must be given if and only if"),
        ({"n_users": 0}, "n_users must be at least 1"),
        ({"releases": (release(0, unit=Unit.ROW),)}, "must protect the budget's unit, user"),
    ],
)
def test_a_certificate_that_contradicts_itself_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        certificate(**changes)


def test_nothing_released_costs_nothing() -> None:
    claim = certificate(releases=())
    assert claim.epsilon == 0.0
    assert claim.certified


def test_what_is_not_covered_is_said_by_default() -> None:
    assert certificate().not_covered == (*NOT_COVERED, NO_ACCOUNT)
    floating = certificate(releases=(release(0), release(1, noise="float")))
    assert floating.not_covered == (*NOT_COVERED, NO_ACCOUNT, FLOAT_NOISE)
    assert Certificate.from_json(floating.to_json()).not_covered == floating.not_covered


def test_a_delta_that_is_too_large_for_the_roster_is_noted_once() -> None:
    assert certificate().notes == ()
    claim = certificate(n_users=1_000_000, notes=["heads are free"])
    assert claim.notes[0] == "heads are free"
    assert "not below 1/n" in claim.notes[1]
    assert Certificate.from_json(claim.to_json()).notes == claim.notes


@pytest.mark.parametrize(
    "claim",
    [
        certificate(),
        certificate(files={"config.json": "ab" * 32}, notes=("ε",), budget=replace(BUDGET, adjacency="replace-one")),
        uncertified(nominal_epsilon=2.0),
        uncertified(nominal_epsilon=math.inf),
        certificate(
            mode="non-private",
            reasons=("no privacy was asked for",),
            budget=Budget(epsilon=math.inf, delta=1e-6),
            releases=(release(0, noise="none", sigma=0.0),),
        ),
    ],
)
def test_json_reads_back_as_the_same_certificate(claim: Certificate) -> None:
    text = claim.to_json()

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    data = json.loads(text, parse_constant=refuse)
    assert data["certified"] == claim.certified
    assert float(data["epsilon"]) == claim.epsilon
    assert Certificate.from_json(text) == claim
    assert Certificate.from_json(text).to_json() == text


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda data: data.update(comment="x"), r"Unknown: \['comment'\]"),
        (lambda data: data.pop("trust"), r"missing: \['trust'\]"),
        (lambda data: data.update(n_users=10), "digest does not match"),
        (lambda data: data.update(epsilon=0.1), "digest does not match"),
    ],
)
def test_an_edited_certificate_is_not_read(edit, message: str) -> None:
    data = json.loads(certificate().to_json())
    edit(data)
    with pytest.raises(ValueError, match=message):
        Certificate.from_json(json.dumps(data))


@pytest.mark.parametrize("text", ["[]", "", "{"])
def test_what_is_not_an_object_is_not_read(text: str) -> None:
    with pytest.raises(ValueError, match=r"JSON object|Expecting"):
        Certificate.from_json(text)


def test_a_person_can_read_it() -> None:
    lines = str(certificate()).splitlines()
    assert lines[0] == ("ε = 1.00 (zero-out), 2.13 (replace-one) at δ = 1e-06; unit: user; 7 releases; noise: exact")
    assert any("heads, and predictions" in line for line in lines)
    assert certificate().summary().startswith("PrivateFedRep: ε = 1.00 (zero-out)")
    assert "\n" not in certificate().summary()


def test_what_is_not_certified_says_so_first() -> None:
    text = str(uncertified(nominal_epsilon=4.0))
    assert text.startswith("NOT CERTIFIED; nominal ε = 4.00")
    assert "V2: constants of the paper" in text
    assert "ε = ∞" not in text
    assert "NOT CERTIFIED" in uncertified().summary()


def test_epsilon_is_never_shown_smaller_than_it_is() -> None:
    assert shown(1.0 + 9e-10) == "1.00"
    assert shown(1.0000009) == "1.01"
    assert shown(12345.678) == "12345.68"
    assert shown(1e22 + 2**22) == f"{10**22 + 2**22}.00"
    assert shown(1.001) == "1.01"
    assert shown(0.099991) == "0.1000"
    assert shown(0.0) == "0"
    assert shown(1e8 + 2**-20) == "100000000.00"
    assert shown(1e8 + 2**-8) == "100000000.01"
    chosen = np.random.default_rng(0).uniform(-6, 9, size=2000)
    for epsilon in (0.0123, 0.1234, 3.14159, 77.7777, *(10.0**chosen).tolist()):
        assert Fraction(shown(epsilon)) >= Fraction(epsilon) * (1 - Fraction(1, 10**9))


@pytest.mark.parametrize("found", [None, "tacitly certificate 1", 1])
def test_another_format_is_refused_in_one_sentence(found: object) -> None:
    data = json.loads(certificate().to_json())
    assert data.pop("format") == "tacitly certificate 2"
    text = json.dumps(data if found is None else {**data, "format": found})
    with pytest.raises(ValueError, match=r"must have the format 'tacitly certificate 2'. Found .*that wrote it"):
        Certificate.from_json(text)
    verdict = verify(text)
    assert not verdict.ok
    assert "use the version of tacitly that wrote it" in str(verdict)
