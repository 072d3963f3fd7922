"""A hostile publisher of a model that was refreshed or fitted in parts: what was spent on it cannot be understated.

The publisher has the model, its certificates and the ledger, and records statements in it like anybody who owns it. The
chain of entries is what it cannot rewrite: its head is in other people's hands.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tacitly
from tacitly.privacy import account
from tacitly.privacy.account import record
from tacitly.privacy.certificate import Certificate
from tacitly.privacy.guarantee import Budget
from tacitly.privacy.ledger import Ledger
from tacitly.privacy.verification import verify

DATA = tacitly.datasets.make_shared_subspace(300, 5, 1, 6, random_state=3)
PARTS = [(DATA.users % 3 == part) for part in range(3)]
CEILING = Budget(epsilon=40.0, delta=1e-6)
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def refreshed(ledger: Ledger, run: str, epsilon: float, parts: Sequence[int] = (0, 1, 2)) -> Certificate:
    """Return the certificate of a basis that was refreshed."""
    model = tacitly.PrivateFedRep(rank=1, epsilon=epsilon, rounds=1, ledger=ledger, run=run)
    for number, part in enumerate(parts):
        rows = PARTS[part]
        (model.refresh if number else model.fit)(DATA.X[rows], DATA.y[rows], DATA.users[rows])
    claim = model.certify()
    model.close()
    return claim


def in_parts(ledger: Ledger, run: str, epsilon: float, parts: Sequence[int] = (0, 1, 2)) -> Certificate:
    """Return the certificate of components that were fitted in parts."""
    model = tacitly.FedPower(1, epsilon, unit="user", ledger=ledger, run=run)
    for part in parts:
        model.partial_fit(DATA.X[PARTS[part]], users=DATA.users[PARTS[part]])
    claim = model.certify()
    model.close()
    return claim


KINDS = {"refresh": refreshed, "partial_fit": in_parts}


@pytest.fixture(scope="module", params=KINDS)
def spent(request: pytest.FixtureRequest) -> Iterator[tuple[Ledger, Certificate, Certificate]]:
    """Return an account with two models of three runs each, a dear one and a cheap one."""
    with Ledger(ceiling=CEILING) as ledger:
        make = KINDS[request.param]
        dear, cheap = make(ledger, "dear", 3.0), make(ledger, "cheap", 0.5)
        yield ledger, dear, cheap


def runs(claim: Certificate) -> list[str]:
    return list(dict.fromkeys(release.run for release in claim.releases))


def of_runs(claim: Certificate, names: Sequence[str], ledger: Ledger) -> Certificate:
    """Return the certificate with the releases of these runs, as if they were all."""
    return replace(claim, releases=tuple(row for name in names for row in ledger.releases(name)), signature=None)


def again(claim: Certificate, ledger: Ledger, run: str, **totals: Any) -> Certificate:
    """Record a certificate as its owner can: with other totals, in any run."""
    stated = replace(claim, account={**account.totals(ledger, claim.budget), **totals}, signature=None)
    entry, head = ledger.certify(run, stated.statement)
    assert stated.account is not None
    return replace(stated, account={**stated.account, "entries": entry, "head": head})


def failed(claim: Certificate, ledger: Ledger) -> tuple[str, ...]:
    return verify(claim.to_json(), ledger=ledger).failed


def test_honest_models_of_three_runs_verify(spent: tuple[Ledger, Certificate, Certificate]) -> None:
    ledger, dear, cheap = spent
    for claim in (dear, cheap):
        verdict = verify(claim.to_json(), ledger=ledger)
        assert verdict.ok, str(verdict)
        assert len(runs(claim)) == 3
        assert verify(again(claim, ledger, runs(claim)[-1]).to_json(), ledger=ledger).ok


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("kept", [(2,), (1,), (0,), (1, 2), (0, 2), (0, 1)])
def test_a_run_cannot_be_left_out(
    spent: tuple[Ledger, Certificate, Certificate], kept: tuple[int, ...], recorded: bool
) -> None:
    """Whoever leaves out the later runs states an earlier model: its files are not these."""
    ledger, dear, _ = spent
    names = [runs(dear)[number] for number in kept]
    forged = of_runs(dear, names, ledger)
    if recorded and kept not in ((0,), (0, 1)):
        forged = again(forged, ledger, names[-1])
    assert verify(forged.to_json()).ok  # consistent in itself
    assert failed(forged, ledger)


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_run_of_another_model_does_not_stand_for_ones_own(
    spent: tuple[Ledger, Certificate, Certificate], place: int, recorded: bool
) -> None:
    ledger, dear, cheap = spent
    names = runs(dear)
    names[place] = runs(cheap)[place]
    forged = of_runs(dear, names, ledger)
    assert failed(again(forged, ledger, names[-1]) if recorded else forged, ledger)


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("order", [(1, 0, 2), (2, 1, 0), (0, 2, 1)])
def test_runs_have_their_order(
    spent: tuple[Ledger, Certificate, Certificate], order: tuple[int, ...], recorded: bool
) -> None:
    ledger, dear, _ = spent
    names = [runs(dear)[number] for number in order]
    forged = of_runs(dear, names, ledger)
    assert failed(again(forged, ledger, names[-1]) if recorded else forged, ledger)


def test_releases_of_runs_are_not_interleaved(spent: tuple[Ledger, Certificate, Certificate]) -> None:
    ledger, dear, _ = spent
    rows = dear.releases
    mixed = (rows[0], rows[-1], *rows[1:-1])
    assert failed(replace(dear, releases=mixed, signature=None), ledger)


def test_an_older_certificate_is_that_of_the_older_model(tmp_path: Path) -> None:
    """The files are others since; what was recorded of the first fit names the first fit's."""
    with Ledger(tmp_path / "account.db", ceiling=CEILING) as ledger:
        model = tacitly.PrivateFedRep(rank=1, epsilon=3.0, rounds=1, ledger=ledger)
        first, second = PARTS[0], PARTS[1]
        model.fit(DATA.X[first], DATA.y[first], DATA.users[first])
        tacitly.save(model, tmp_path / "older")
        model.refresh(DATA.X[second], DATA.y[second], DATA.users[second])
        tacitly.save(model, tmp_path / "newer")
        older = Certificate.from_json((tmp_path / "older" / "certificate.json").read_text("utf-8"))
        new = {name: (tmp_path / "newer" / name).read_bytes() for name in ("billboard.safetensors", "config.json")}
        replayed = replace(older, files=newer_hashes(tmp_path), signature=None)
        assert verify(replayed.to_json(), files=new).ok
        assert verify(older.to_json(), files=new, ledger=ledger).failed == ("files",)
        assert verify(replayed.to_json(), files=new, ledger=ledger).failed == ("ledger_words", "ledger_files")


@pytest.mark.parametrize("cheaper", ["the first call", "another model"])
def test_a_model_on_record_is_not_recorded_again_with_cheaper_runs(tmp_path: Path, cheaper: str) -> None:
    """The ledger's owner may record any statement, but the honest one stays beside it."""
    with Ledger(tmp_path / "account.db", ceiling=CEILING) as ledger:
        model = tacitly.PrivateFedRep(rank=1, epsilon=3.0, rounds=1, ledger=ledger)
        for number, call in enumerate((model.fit, model.refresh)):
            call(DATA.X[PARTS[number]], DATA.y[PARTS[number]], DATA.users[PARTS[number]])
        tacitly.save(model, tmp_path / "newer")
        other = refreshed(ledger, "other", 0.5, parts=(0,))
        files = {name: (tmp_path / "newer" / name).read_bytes() for name in ("billboard.safetensors", "config.json")}
        claim = Certificate.from_json((tmp_path / "newer" / "certificate.json").read_text("utf-8"))
        verdict = verify(claim.to_json(), files=files, ledger=ledger)
        assert verdict.ok, str(verdict)
        forged = of_runs(claim, runs(claim)[:1], ledger) if cheaper == "the first call" else other
        forged = replace(forged, files=newer_hashes(tmp_path), n_users=other.n_users, public=(), signature=None)
        forged = again(forged, ledger, runs(forged)[-1])
        assert forged.epsilon < claim.epsilon
        assert verify(forged.to_json(), files=files).ok
        assert verify(forged.to_json(), files=files, ledger=ledger).failed == ("ledger_files",)
        # An account that contradicts itself vouches for neither.
        assert verify(claim.to_json(), files=files, ledger=ledger).failed == ("ledger_files",)


def newer_hashes(folder: Path) -> dict[str, str]:
    return dict(json.loads((folder / "newer" / "certificate.json").read_text("utf-8"))["files"])


@pytest.mark.parametrize(
    "changed",
    [
        {"epsilon": 0.1},
        {"period_epsilon": 0.1},
        {"delta": 0.5},
        {"adjacency": "replace-one"},
        {"runs": 1},
        {"period": "2020"},
        {"renews": "monthly"},
        {"ceiling": None},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_totals_are_what_the_ledger_has(
    spent: tuple[Ledger, Certificate, Certificate], changed: dict[str, Any]
) -> None:
    ledger, dear, _ = spent
    assert dear.account is not None
    assert failed(replace(dear, account={**dear.account, **changed}, signature=None), ledger)
    if "delta" in changed:  # with the total that belongs to it
        changed = {**changed, "epsilon": ledger.spent(delta=0.5), "period_epsilon": ledger.spent(delta=0.5)}
    assert failed(again(dear, ledger, runs(dear)[-1], **changed), ledger)


@pytest.mark.parametrize("changed", [{"n_users": 10_000}, {"n_users": 7}, {"algorithm": "MarginClassifier"}], ids=str)
def test_what_runs_announced_is_what_certificates_state(
    spent: tuple[Ledger, Certificate, Certificate], changed: dict[str, Any]
) -> None:
    ledger, dear, _ = spent
    assert failed(again(replace(dear, **changed, public=()), ledger, runs(dear)[-1]), ledger)


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_a_copy_from_before_the_last_run_does_not_agree(tmp_path: Path, make: Any) -> None:
    with Ledger(ceiling=CEILING) as ledger:
        whole, less = make(ledger, "whole", 3.0), make(ledger, "less", 3.0, parts=(0, 1))
        before_the_last = of_runs(whole, runs(whole)[:-1], ledger)
        assert failed(before_the_last, ledger)
        assert not failed(less, ledger)
    with Ledger(tmp_path / "a.db", ceiling=CEILING) as ledger:
        make(ledger, "first", 1.0, parts=(0,))
        copy = tmp_path / "copy.db"
        shutil.copy(tmp_path / "a.db", copy)
        whole = make(ledger, "more", 3.0)
    shutil.move(tmp_path / "a.db", tmp_path / "hidden.db")
    with pytest.raises(tacitly.privacy.ledger.LedgerMismatch, match="older copy"):
        Ledger(copy)


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_runs_of_another_account_are_not_of_this_one(make: Any) -> None:
    with Ledger(ceiling=CEILING) as mine, Ledger(ceiling=CEILING) as other:
        make(mine, "fit", 3.0, parts=(0,))
        claim = make(other, "fit", 3.0)
        assert failed(claim, mine)
        moved = of_runs(claim, runs(claim)[:1], mine)  # the first run has rows of the same cost, and the same name
        assert failed(again(moved, mine, runs(claim)[0]), mine)
        assert failed(again(claim, mine, runs(claim)[0]), mine)


def test_a_forged_certificate_of_the_calls_before_shows_in_the_next(tmp_path: Path) -> None:
    """A loaded model is continued from a certificate that lost its first run: the ledger knows better."""
    with Ledger(tmp_path / "account.db", ceiling=CEILING) as ledger:
        model = tacitly.PrivateFedRep(rank=1, epsilon=3.0, rounds=1, ledger=ledger)
        for number in (0, 1):
            rows = PARTS[number]
            (model.refresh if number else model.fit)(DATA.X[rows], DATA.y[rows], DATA.users[rows])
        claim = model.certify()
        model.certificate_, model.run = of_runs(claim, runs(claim)[1:], ledger), "other"
        rows = PARTS[2]
        model.refresh(DATA.X[rows], DATA.y[rows], DATA.users[rows])
        forged = model.certify()
        model.close()
        assert failed(forged, ledger)


def test_a_debit_of_another_run_does_not_fall_between_totals_and_their_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Honest certificates of an account that several processes use verify."""
    path = tmp_path / "account.db"
    with Ledger(path, ceiling=CEILING) as ledger, Ledger(path) as other:
        claim = refreshed(ledger, "fit", 3.0)
        run = other.run("meanwhile", config={})
        row = claim.releases[0]

        def spend() -> None:
            words = {"noise": row.noise, "grid": row.grid, "coordinates": row.coordinates}
            run.release(row.name, row.event, lambda: np.zeros(row.coordinates), **words)

        threads, counted = [threading.Thread(target=spend)], account.totals

        def slow(*arguments: Any) -> dict[str, Any]:
            found = counted(*arguments)
            threads[0].start()
            threads[0].join(timeout=0.5)  # long enough for a debit that does not have to wait
            return found

        monkeypatch.setattr(account, "totals", slow)
        again_recorded = record(replace(claim, signature=None), ledger, runs(claim)[-1])
        threads[0].join()
        verdict = verify(again_recorded.to_json(), ledger=ledger)
        assert verdict.ok, str(verdict)


@pytest.mark.parametrize("change", [{"delta": 1e-7}, {"adjacency": "replace-one"}])
@pytest.mark.parametrize("kind", KINDS)
def test_a_further_call_with_other_terms_spends_nothing(kind: str, change: dict[str, Any]) -> None:
    """Its certificate would not be what the runs before announced, so it would never verify."""
    with Ledger(ceiling=CEILING) as ledger:
        model: Any = tacitly.PrivateFedRep(rank=1, epsilon=1.0, rounds=1, ledger=ledger)
        more = model.refresh
        if kind == "partial_fit":
            model = tacitly.FedPower(1, 1.0, unit="user", ledger=ledger)
            more = model.partial_fit
        rows = PARTS[0]
        (model.fit if kind == "refresh" else more)(DATA.X[rows], DATA.y[rows], DATA.users[rows])
        before, spent = model.certificate_, ledger.spent()
        model.set_params(**change)
        with pytest.raises(ValueError, match="same adjacency"):
            more(DATA.X[rows], DATA.y[rows], DATA.users[rows])
        assert ledger.spent() == spent
        assert model.certificate_ is before
        model.close()
