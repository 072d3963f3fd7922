"""Verification: a valid certificate passes, and every edit is caught by the check meant for it."""

from __future__ import annotations

import ast
import hashlib
import json
import math
import shutil
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import tacitly
from tacitly.cli.main import app
from tacitly.model_folder import ModelError, publish
from tacitly.privacy import certificate_text, ledger_comparison, second_opinion, verdict, verification
from tacitly.privacy.account import record, totals
from tacitly.privacy.accounting import compose, delta_of, mu_of
from tacitly.privacy.certificate import Certificate, shown
from tacitly.privacy.guarantee import Adjacency, Budget, GaussianEvent, Sensitivity
from tacitly.privacy.ledger import Ledger
from tacitly.privacy.signing import signed
from tacitly.privacy.verification import verify

BUDGET = Budget(epsilon=1.0, delta=1e-6)
BILLBOARD = b"the public state"
GRID, COORDINATES, RELEASES = 2.0**-20, 16, 5
HUGE = 10**100 + 7  # represents a number that JSON can write and a float cannot hold


def fill(
    ledger: Ledger,
    *,
    name: str = "fit",
    noise: str = "exact",
    sigma: float | None = None,
    rate: float = 1.0,
    certified: bool = True,
    after: tuple[str, ...] = (),
) -> None:
    """Make one run of five releases that spend the budget, or that use the given noise."""
    run = ledger.run(name, config={"after": list(after)} if after else {}, certified=certified)
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


def stated(ledger: Ledger, **changes: Any) -> Certificate:
    """Return a certificate that is recorded nowhere."""
    fields = {
        "algorithm": "PrivateFedRep",
        "mode": "certified",
        "budget": BUDGET,
        "releases": tuple(ledger.releases("fit")),
        "n_users": 1000,
        "trust": "central",
        "files": hashes(BILLBOARD),
        "account": totals(ledger, BUDGET),
        **changes,
    }
    return Certificate(**fields)


def certify(ledger: Ledger, **changes: Any) -> Certificate:
    """Return a certificate, and record it in the ledger."""
    return record(stated(ledger, **changes), ledger, "fit")


def hashes(billboard: bytes) -> dict[str, str]:
    return {"billboard.safetensors": hashlib.sha256(billboard).hexdigest()}


def files(billboard: bytes) -> dict[str, bytes]:
    return {"billboard.safetensors": billboard}


@pytest.fixture(scope="module")
def ledger() -> Ledger:
    ledger = Ledger(ceiling=BUDGET)
    fill(ledger)
    return ledger


@pytest.fixture(scope="module")
def text(ledger: Ledger) -> str:
    return certify(ledger).to_json()


def edited(text: str, edit: Callable[[dict[str, Any]], object], *, reseal: bool = True) -> str:
    """Change a certificate and, by default, forge the digest as well."""
    data = json.loads(text)
    edit(data)
    if reseal:
        del data["digest"]
        sealed = {key: value for key, value in data.items() if key != "signature"}
        sealed = json.dumps(sealed, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        data["digest"] = hashlib.sha256(sealed.encode()).hexdigest()
    return json.dumps(data)


def test_an_untouched_certificate_passes_every_check(text: str, ledger: Ledger) -> None:
    verdict = verify(text, files=files(BILLBOARD), ledger=ledger)
    assert verdict.ok, str(verdict)
    assert [check.name for check in verdict.checks] == [
        "well-formed",
        "digest",
        "releases",
        "published",
        "order",
        "sensitivity",
        "unit",
        "slack",
        "selection",
        "marking",
        "certified",
        "epsilon",
        "epsilon_zero_out",
        "epsilon_replace_one",
        "budget",
        "mu_zero_out",
        "rho_zero_out",
        "mu_replace_one",
        "rho_replace_one",
        "numeric_zero_out",
        "numeric_replace_one",
        "delta",
        "files",
        "run",
        "ledger",
        "ledger_config",
        "ledger_entry",
        "ledger_words",
        "ledger_files",
        "account",
        "account_total",
        "account_period",
        "ledger_total",
    ]


def test_resealing_alone_changes_nothing(text: str) -> None:
    assert verify(edited(text, lambda data: None)).ok


def event(data: dict[str, Any], index: int = 1) -> dict[str, Any]:
    return data["releases"][index]["event"]


ZERO_OUT = {"epsilon_zero_out", "mu_zero_out", "rho_zero_out"}
REPLACE_ONE = {"epsilon_replace_one", "mu_replace_one", "rho_replace_one"}
EPSILONS = {"epsilon", "epsilon_zero_out", "epsilon_replace_one"}
BOTH = {"epsilon", *ZERO_OUT, *REPLACE_ONE}
EDITS: dict[str, tuple[Callable[[dict[str, Any]], object], set[str]]] = {
    "epsilon": (lambda d: d.update(epsilon=0.5), {"epsilon"}),
    "epsilon a little": (lambda d: d.update(epsilon=d["epsilon"] * (1 - 1e-5)), {"epsilon"}),
    "replace-one epsilon": (lambda d: d.update(epsilon_replace_one=1.0), {"epsilon_replace_one"}),
    "infinite epsilon": (lambda d: d.update(epsilon="inf"), {"epsilon", "marking"}),
    "sigma": (lambda d: event(d).update(sigma=event(d)["sigma"] * 1.01), {"slack", *BOTH}),
    "zero-out sensitivity": (
        lambda d: event(d)["sensitivity"].update(zero_out=1.09),
        {"sensitivity", "epsilon", *ZERO_OUT},
    ),
    "replace-one sensitivity": (
        lambda d: event(d)["sensitivity"].update(replace_one=1.6),
        {"sensitivity", *REPLACE_ONE},
    ),
    "impossible sensitivity": (
        lambda d: event(d)["sensitivity"].update(replace_one=0.6),
        {"sensitivity", *REPLACE_ONE},
    ),
    "acute, which it is not": (
        lambda d: event(d)["sensitivity"].update(replace_one=1.1 * math.sqrt(2)),
        REPLACE_ONE,
    ),
    "delta that promises nothing": (lambda d: d["budget"].update(delta=0.9), {"delta", *EPSILONS}),
    "mu": (lambda d: d.update(mu_zero_out=0.1), {"mu_zero_out"}),
    "rho": (lambda d: d.update(rho_replace_one=None), {"rho_replace_one"}),
    "unit of a release": (lambda d: event(d)["sensitivity"].update(unit="row"), {"unit"}),
    "unit of the budget": (lambda d: d["budget"].update(unit="label"), {"unit"}),
    "last release": (lambda d: d["releases"].pop(), BOTH),
    "middle release": (lambda d: d["releases"].pop(2), {"order", *BOTH}),
    "adjacency": (lambda d: d["budget"].update(adjacency="replace-one"), {"epsilon", "budget"}),
    "delta": (lambda d: d["budget"].update(delta=1e-7), {"budget", *EPSILONS}),
    "budget": (lambda d: d["budget"].update(epsilon=0.9), {"budget"}),
    "grid": (lambda d: d["releases"][0].update(grid=2.0**-10), {"slack", *EPSILONS}),
    "grid away": (lambda d: d["releases"][0].update(grid=0), {"slack"}),
    "coordinates": (lambda d: d["releases"][0].update(coordinates=17), {"slack"}),
    "slack": (lambda d: event(d).update(slack=0), {"slack"}),
    "state": (lambda d: d["releases"][3].update(state="debited"), {"published"}),
    "certified flag": (lambda d: d.update(certified=False), {"marking", "certified"}),
    "mode": (lambda d: d.update(mode="paper"), {"marking", "certified", *BOTH}),
    "mode and flag": (lambda d: d.update(mode="paper", certified=False), {"marking", "certified", *BOTH}),
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


@pytest.mark.parametrize("field", ["trust", "algorithm", "purpose"])
def test_an_edit_of_words_is_caught_by_the_digest(text: str, field: str) -> None:
    assert verify(edited(text, lambda d: d.update({field: "x"}), reseal=False)).failed == ("digest",)


@pytest.mark.parametrize(
    ("edit", "place"),
    [
        (lambda d: d.update(extra=1), "certificate must have exactly"),
        (lambda d: d.pop("notes"), "certificate must have exactly"),
        (lambda d: d["releases"][0].pop("grid"), r"releases\[0\] must have exactly"),
        (lambda d: event(d).update(seed=1), r"releases\[1\].event must have exactly"),
        (lambda d: event(d).update(sigma=-1), "sigma must be a not negative finite number"),
        (lambda d: event(d).update(sigma="inf"), "sigma must be a not negative finite number"),
        (lambda d: event(d).update(sigma=True), "sigma must be a not negative finite number"),
        (lambda d: event(d).update(sigma=10**400), "sigma must be a not negative finite number"),
        (lambda d: d["releases"][0].update(coordinates=10**400), "coordinates must be an integer"),
        (lambda d: d.update(n_users=2**63), "n_users must be an integer"),
        (lambda d: event(d).update(sampling_rate=0), "sampling_rate must be"),
        (lambda d: event(d).update(mechanism="laplace"), "mechanism must be one of"),
        (lambda d: d["releases"][0].update(coordinates=1.5), "coordinates must be an integer"),
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


@pytest.mark.parametrize(
    ("edit", "place"),
    [
        (lambda d: event(d).update(sigma=HUGE), "sigma"),
        (lambda d: event(d)["sensitivity"].update(zero_out=HUGE), "zero_out"),
        (lambda d: d["releases"][0].update(grid=HUGE), "grid"),
        (lambda d: d["budget"].update(epsilon=HUGE), "budget.epsilon"),
        (lambda d: d.update(epsilon=HUGE), "certificate.epsilon"),
        (lambda d: d.update(nominal_epsilon=HUGE), "nominal_epsilon"),
    ],
)
def test_a_number_that_overflows_is_not_infinity(
    text: str, edit: Callable[[dict[str, Any]], object], place: str
) -> None:
    sealed = edited(text, lambda d: edit(d))
    verdict = verify(sealed.replace(str(HUGE), "1e999"))
    assert verdict.failed == ("well-formed",), str(verdict)
    assert place in verdict.checks[0].message
    assert "finite number" in verdict.checks[0].message


@pytest.mark.parametrize("broken", ["", "{", "[]", "null", '{"epsilon": 1, "epsilon": 2}', "[" * 100_000])
def test_what_is_not_a_certificate_is_a_verdict_not_a_crash(broken: str) -> None:
    assert verify(broken).failed == ("well-formed",)


def test_the_files_must_be_those_certified(text: str, ledger: Ledger) -> None:
    assert verify(text, files=files(BILLBOARD + b"!")).failed == ("files",)
    assert verify(text, files={**files(BILLBOARD), "config.json": b"{}"}).failed == ("files",)
    assert verify(text, files={}).failed == ("files",)
    without = stated(ledger, files={}).to_json()
    assert verify(without).ok
    assert verify(without, files=files(BILLBOARD)).failed == ("files",)
    assert verify(without, files={}).failed == ("files",)


WORDS: dict[str, Callable[[dict[str, Any]], object]] = {
    "n_users": lambda d: d.update(n_users=900_000),
    "algorithm": lambda d: d.update(algorithm="Centaur"),
    "trust": lambda d: d.update(trust="nobody sees anything"),
    "not_covered": lambda d: d.update(not_covered=[]),
    "public": lambda d: d.update(public=[]),
    "notes": lambda d: d.update(notes=["audited"]),
    "nominal_epsilon": lambda d: d.update(nominal_epsilon=0.1),
    "budget": lambda d: d["budget"].update(epsilon=3.0),
    "files": lambda d: d["files"].update({"billboard.safetensors": "0" * 64}),
    "date": lambda d: d.update(date="2020-01-01"),
    "purpose": lambda d: d.update(purpose="research"),
    "curator": lambda d: d.update(curator="somebody else"),
    "region": lambda d: d.update(region="elsewhere"),
    "code": lambda d: d["code"].update(version="9"),
    "dependencies": lambda d: d["dependencies"].update(numpy="9"),
    "account": lambda d: d["account"].update(ceiling=None),
}


@pytest.mark.parametrize("field", WORDS)
def test_the_ledger_knows_every_word_of_its_certificates(text: str, ledger: Ledger, field: str) -> None:
    forged = edited(text, WORDS[field])
    assert verify(forged).ok
    verdict = verify(forged, ledger=ledger)
    assert verdict.failed == ("ledger_words", *(["account"] if field == "account" else []))
    assert f"recorded: {field}" in str(verdict)


def test_the_list_of_words_is_complete(text: str) -> None:
    data = json.loads(text)
    elsewhere = {"format", "digest", "signature", "releases", "certified", "mode", "reasons"}  # other checks
    numbers = {name for name in data if name.startswith(("epsilon", "mu_", "rho_"))}
    assert set(WORDS) == set(data) - elsewhere - numbers


def test_the_accounts_total_follows_from_its_releases(text: str, ledger: Ledger) -> None:
    forged = edited(text, lambda d: d["account"].update(epsilon=0.5))
    assert set(verify(forged, ledger=ledger).failed) == {"ledger_words", "account_total"}


def test_a_signature_belongs_to_a_text_and_a_key(text: str, ledger: Ledger) -> None:
    claim = signed(certify(ledger))
    assert claim.signature is not None
    mine, other = claim.signature["key"], "ab" * 32
    assert verify(signed(certify(ledger)).to_json(), key=mine).ok  # one key for all of a user's certificates
    assert verify(claim.to_json(), key=mine, ledger=ledger).ok
    assert verify(claim.to_json(), key=other).failed == ("signature",)
    assert verify(text, key=mine).failed == ("signature",)
    forged = edited(claim.to_json(), WORDS["n_users"])
    assert verify(forged).failed == ("signature",)
    assert Certificate.from_json(claim.to_json()) == claim
    assert verify(edited(claim.to_json(), lambda d: d["signature"].update(value="zz"))).failed == ("signature",)


def test_the_ledger_shows_a_release_left_out_consistently(ledger: Ledger) -> None:
    claim = certify(ledger)
    partial = replace(claim, releases=claim.releases[:-1]).to_json()
    assert verify(partial).ok
    assert verify(partial, ledger=ledger).failed == ("ledger",)


def test_the_ledger_of_another_run_does_not_agree(text: str) -> None:
    with Ledger() as other:
        assert verify(text, ledger=other).failed == ("run", "ledger", "ledger_entry")


def test_the_certificate_of_a_cheap_run_does_not_cover_the_model_of_an_expensive_one() -> None:
    model = b"the other public state"
    with Ledger() as ledger:
        fill(ledger)
        fill(ledger, name="expensive", sigma=1.0)
        claim = certify(ledger)
        forged = replace(claim, files=hashes(model)).to_json()
        assert verify(forged, files=files(model)).ok
        assert verify(forged, files=files(model), ledger=ledger).failed == ("ledger_words",)
        honest = verify(claim.to_json(), files=files(BILLBOARD), ledger=ledger)
        assert honest.ok, str(honest)


def test_a_certificate_of_several_runs_holds_all_their_releases_and_is_recorded_in_the_last() -> None:
    with Ledger() as ledger:
        fill(ledger)
        fill(ledger, name="more", after=("fit",))
        both = {"releases": tuple(ledger.releases()), "budget": replace(BUDGET, epsilon=2.0)}
        whole = verify(record(stated(ledger, **both), ledger, "more").to_json(), ledger=ledger)
        assert whole.ok, str(whole)
        assert verify(certify(ledger, **both).to_json(), ledger=ledger).failed == ("ledger_entry",)
        less = stated(ledger, **{**both, "releases": both["releases"][:-1]})
        assert "ledger" in verify(record(less, ledger, "more").to_json(), ledger=ledger).failed


def test_a_run_that_goes_on_or_recorded_no_certificate_is_not_verified(ledger: Ledger) -> None:
    with Ledger() as silent:
        fill(silent)
        assert verify(stated(silent).to_json(), ledger=silent).failed == ("ledger_entry",)
        assert verify(stated(silent, account=None).to_json(), ledger=silent).failed == ("ledger_entry",)
    with Ledger() as going:
        run = going.run("fit", config={})
        for row in ledger.releases("fit"):
            run.release(
                row.name,
                row.event,
                lambda: np.zeros(COORDINATES),
                noise=row.noise,
                grid=row.grid,
                coordinates=row.coordinates,
            )
        verdict = verify(certify(ledger).to_json(), ledger=going)
        assert verdict.failed == ("run", "ledger_entry")
        assert "not finished" in str(verdict)


def test_the_ledger_says_whether_its_run_was_certified() -> None:
    with Ledger() as ledger:
        fill(ledger, certified=False)
        assert verify(certify(ledger).to_json(), ledger=ledger).failed == ("run",)


def test_the_ledgers_total_is_told() -> None:
    with Ledger() as ledger:
        fill(ledger)
        fill(ledger, name="more")
        claim = certify(ledger)
        fill(ledger, name="later")
        line = verify(claim.to_json(), ledger=ledger).checks[-1]
        then, total = (ledger_epsilon(ledger, names) for names in (["fit", "more"], ["fit", "more", "later"]))
        assert line.name == "ledger_total"
        assert line.ok
        assert line.message.startswith(f"{then:.6g} when it was certified, {total:.6g} by now ")
        assert claim.epsilon < then < total
        assert f"this model: {shown(claim.epsilon)}; everything on this account: {shown(then)}" in str(claim)


def ledger_epsilon(ledger: Ledger, runs: list[str]) -> float:
    return compose([row.cost for run in runs for row in ledger.releases(run)], Adjacency.ZERO_OUT, BUDGET.delta)


@pytest.mark.parametrize(
    ("noise", "sigma", "mode"),
    [("none", 0.0, "non-private"), ("seeded", 9.0, "seeded"), ("exact", 9.0, "paper")],
)
@pytest.mark.parametrize("asked", [1.0, math.inf])
def test_what_is_uncertified_and_says_so_passes_only_where_that_is_allowed(
    noise: str, sigma: float, mode: str, asked: float
) -> None:
    budget = replace(BUDGET, epsilon=asked)
    with Ledger() as ledger:
        fill(ledger, noise=noise, sigma=sigma, certified=False)
        claim = certify(ledger, mode=mode, reasons=("asked for",), budget=budget, nominal_epsilon=asked)
        verdict = verify(claim.to_json(), ledger=ledger, allow_uncertified=True)
        assert verdict.ok, str(verdict)
        assert "inf by now" in verdict.checks[-1].message
        strict = verify(claim.to_json(), ledger=ledger)
        assert strict.failed == ("certified",)
        assert "not certified: asked for" in str(strict)
        pretending = edited(claim.to_json(), lambda d: d.update(epsilon=0.5, certified=True))
        assert set(verify(pretending).failed) == {"marking", "certified", "epsilon"}


def test_noise_without_a_limit_on_epsilon_is_still_certified() -> None:
    with Ledger(ceiling=Budget(epsilon=math.inf, delta=1e-6)) as ledger:
        fill(ledger)
        claim = certify(ledger, budget=replace(BUDGET, epsilon=math.inf))
        assert claim.certified
        assert verify(claim.to_json(), ledger=ledger).ok


def test_a_certificate_of_nothing_is_no_certificate(ledger: Ledger, text: str) -> None:
    empty = stated(ledger, releases=()).to_json()
    assert verify(empty).failed == ("releases",)
    assert verify(empty, allow_uncertified=True).failed == ("releases",)
    stripped = edited(text, lambda d: d.update(dict.fromkeys(BOTH, 0.0), releases=[]))
    failed = set(verify(stripped, files=files(BILLBOARD), ledger=ledger).failed)
    assert failed == {"releases", "run", "ledger", "ledger_entry"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two certified models in one ledger, with small and large ε, and a seeded one in another."""
    place = tmp_path_factory.mktemp("models")
    data = tacitly.datasets.make_shared_subspace(200, 4, 1, 8, random_state=0)
    for name, options in MODELS.items():
        account = Ledger(place / ("seeded.ledger" if "noise_seed" in options else "ledger"))
        with account, warnings.catch_warnings():
            warnings.simplefilter("ignore", tacitly.UncertifiedWarning)
            model = tacitly.PrivateFedRep(rank=1, **options, ledger=account, run=name)  # type: ignore[arg-type]
            tacitly.save(model.fit(data.X, data.y, data.users), place / name)
    return place


MODELS: dict[str, dict[str, float]] = {
    "cheap": {"epsilon": 1.0},
    "dear": {"epsilon": 8.0},
    "seeded": {"epsilon": 1.0, "noise_seed": 1},
}


def tacitly_verify(*words: object) -> int:
    return CliRunner().invoke(app, ["verify", *map(str, words)]).exit_code


def test_a_saved_model_is_verified_against_its_ledger_and_no_other_model_is(folders: Path, tmp_path: Path) -> None:
    for name in ("cheap", "dear"):
        assert tacitly_verify(folders / name, "--ledger", folders / "ledger") == 0
    data = tmp_path / "forged" / "billboard.safetensors"
    shutil.copytree(folders / "dear", data.parent)
    claim = Certificate.from_json((folders / "cheap" / "certificate.json").read_text(encoding="utf-8"))
    config = (data.parent / "config.json").read_bytes()
    found = {**hashes(data.read_bytes()), "config.json": hashlib.sha256(config).hexdigest()}
    forged = replace(claim, files=found, signature=None)
    (data.parent / "certificate.json").write_text(forged.to_json(), encoding="utf-8")
    assert tacitly_verify(data.parent, "--ledger", folders / "ledger") == 1
    assert tacitly_verify(data.parent) == 1  # this machine knows the account's ledger
    (data.parent / "certificate.json").write_text(replace(forged, account=None).to_json(), encoding="utf-8")
    assert tacitly_verify(data.parent) == 0
    assert claim.signature is not None
    assert tacitly_verify(data.parent, "--key", claim.signature["key"]) == 1


def test_a_changed_configuration_is_neither_verified_nor_loaded(folders: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folders / "cheap", copy)
    assert tacitly_verify(copy) == 0
    config = json.loads((copy / "config.json").read_text("utf-8"))
    config["features"].reverse()
    (copy / "config.json").write_text(json.dumps(config), "utf-8")
    assert tacitly_verify(copy) == 1
    with pytest.raises(ModelError, match=r"config.json does not match its certificate"):
        tacitly.load(copy)
    with pytest.raises(ModelError, match="does not hold: files"):
        publish(copy, tmp_path / "public")


def test_the_command_fails_on_an_uncertified_model_unless_told_otherwise(folders: Path) -> None:
    model, account = folders / "seeded", folders / "seeded.ledger"
    assert tacitly_verify(model, "--ledger", account) == 1
    assert tacitly_verify(model, "--ledger", account, "--allow-uncertified") == 0
    assert tacitly_verify(model, "--ledger", folders / "ledger", "--allow-uncertified") == 1


def test_an_uncertified_model_is_published_only_where_that_is_allowed(folders: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="not certified"):
        publish(folders / "seeded", tmp_path / "public")
    assert publish(folders / "seeded", tmp_path / "public", allow_uncertified=True).is_dir()


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_sampled_releases_are_derived_from_loss_distributions(adjacency: Adjacency) -> None:
    with Ledger() as ledger:
        fill(ledger, noise="float", sigma=3.0, rate=0.2)
        claim = certify(ledger, budget=Budget(epsilon=20.0, delta=1e-6, adjacency=adjacency))
    verdict = verify(claim.to_json())
    assert verdict.ok, str(verdict)
    unsampled = edited(claim.to_json(), lambda d: [r["event"].update(sampling_rate=1) for r in d["releases"]])
    assert set(verify(unsampled).failed) >= BOTH


@pytest.mark.parametrize(
    ("sigma", "rate"), [(1e-3, 0.01), (1e-200, 0.5), (1e200, 0.5), (1.0, 1e-105), (1.0, 1 - 1e-16), (1e-200, 1.0)]
)
def test_releases_that_no_grid_of_losses_can_hold_make_a_verdict(sigma: float, rate: float, text: str) -> None:
    """A stranger's certificate of a few lines asked for terabytes, or raised."""

    def extreme(data: dict[str, Any]) -> None:
        data["releases"][0]["event"].update(sigma=sigma, sampling_rate=rate, slack=0.0)

    verdict = verify(edited(text, extreme))
    assert set(verdict.failed) >= EPSILONS, str(verdict)


def sampled(ratio: float, rate: float, count: int = 1, apart: float = 0.0) -> list[dict[str, Any]]:
    """Sampled releases, each unlike the others if they lie ``apart``."""
    moved = {"zero_out": 1.0, "replace_one": 2.0, "unit": "user"}
    events = [
        {"sigma": (1.0 + apart * i) / ratio, "sensitivity": moved, "sampling_rate": rate, "slack": 0.0}
        for i in range(count)
    ]
    return [{"event": event, "noise": "float", "grid": 0.0, "coordinates": 3} for event in events]


def test_verifying_many_sampled_releases_takes_no_longer_than_a_few() -> None:
    """Each that is unlike the others took up to 20 seconds, and many alike a grid of more numbers than memory holds."""
    for releases in (sampled(20.0, 0.5, 1000, 1e-4), sampled(20.0, 0.5, 1000), sampled(1.0, 0.5, 100_000)):
        assert second_opinion.epsilon_of(releases, "zero-out", 1e-6) == math.inf
    usual = sampled(1.0, 0.01, 10_000)  # of networks: 10,000 rounds of one in a hundred
    assert math.isfinite(second_opinion.epsilon_of(usual, "zero-out", 1e-6))


def test_releases_that_are_all_different_are_not_composed_numerically(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The closed form checks them; a grid of losses for each would take hours for a stranger's certificate."""
    monkeypatch.setattr("tacitly.privacy.verification.numeric_epsilon", lambda *_, **__: pytest.fail("composed"))

    def different(data: dict[str, Any]) -> None:
        first = data["releases"][0]
        data["releases"] = [
            {**first, "index": i, "event": {**first["event"], "sigma": first["event"]["sigma"] * (30.0 + i / 100)}}
            for i in range(300)
        ]

    assert not {name for name in verify(edited(text, different)).failed if name.startswith("numeric")}


@pytest.mark.parametrize("field", ["releases", "budget", "notes", "n_users", "nominal_epsilon", "account"])
@pytest.mark.parametrize("odd", [3, [4], {"a": 5}, 10**400], ids=["number", "list", "object", "huge"])
def test_fields_of_another_type_are_a_value_error(field: str, odd: Any, text: str) -> None:
    """Every program that reads model folders catches that, and nothing else."""
    with suppress(ValueError):
        Certificate.from_json(edited(text, lambda d: d.update({field: odd})))


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
    from tacitly.privacy import certificate

    def halved(events, adjacency, delta):
        return compose(events, adjacency, delta) / 2

    monkeypatch.setattr(certificate, "compose", halved)
    assert set(verify(certify(ledger).to_json()).failed) == EPSILONS


VERIFIER = (verification, verdict, certificate_text, ledger_comparison, second_opinion)


@pytest.mark.parametrize("module", VERIFIER)
def test_the_verifier_shares_no_code_with_the_accountant(module: Any) -> None:
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    for_types = {id(n) for top in tree.body if isinstance(top, ast.If) for n in ast.walk(top)}
    imported = {
        node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and id(node) not in for_types and node.module
    }
    assert {name for name in imported if name.startswith("tacitly")} <= {part.__name__ for part in VERIFIER}


@pytest.mark.parametrize("key", ["after", "n_units"])
@pytest.mark.parametrize("value", [None, 3.5, "fit", ["many"], {"fit": 1}, True])
def test_words_of_another_program_make_a_verdict_and_no_crash(key: str, value: Any) -> None:
    """Whoever opens a run writes what it likes into its configuration."""
    with Ledger() as ledger:
        run = ledger.run("fit", config={key: value})
        event = GaussianEvent(sigma=9.0, sensitivity=Sensitivity.of_clip(1.0), slack=200 * (GRID / 9.0) ** 2)
        run.release("round", event, lambda: np.zeros(1), noise="exact", grid=GRID, coordinates=1)
        run.finish()
        verdict = verify(certify(ledger).to_json(), ledger=ledger)
    assert verdict.failed == ("run" if key == "after" else "ledger_config",)
