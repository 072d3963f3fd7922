"""Accounts from the command: fits on the same people are added up, told of and limited; seals; amended certificates."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from tacitly.cli.main import app
from tacitly.privacy import home
from tacitly.privacy.ledger import Ledger


def tacitly(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(autouse=True)
def _own_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TACITLY_HOME", str(tmp_path / "home"))


def table(path: Path, first: int = 0, users: int = 80, seed: int = 0) -> Path:
    rng = np.random.default_rng(seed)
    lines = ["person,a,b,score"]
    for user in range(first, first + users):
        for a, b in rng.normal(size=(4, 2)):
            lines.append(f"p{user},{a:.4f},{b:.4f},{a - b + rng.normal() / 10:.4f}")
    path.write_text("\n".join(lines) + "\n")
    return path


def fit(rows: Path, out: Path, *more: object, epsilon: float = 1.0) -> Result:
    words = ["--user", "person", "--target", "score", "--method", "fedrep", "--rank", 1, "--no-compare"]
    return tacitly("fit", rows, *words, "--epsilon", epsilon, "--out", out, *more)


def certificate(folder: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((folder / "certificate.json").read_text("utf-8"))
    return data


def test_a_second_fit_on_the_same_people_is_told_and_added_up(tmp_path: Path) -> None:
    rows = table(tmp_path / "rows.csv")
    assert "have spent" not in fit(rows, tmp_path / "one").output
    again = fit(rows, tmp_path / "two")
    assert again.exit_code == 0, again.output
    assert "these users have spent ε = 1.00 (zero-out, δ = 1e-06); this fit brings it to 1.46" in " ".join(
        again.output.split()
    )
    assert "this model: 1.00; everything on this account: 1.46" in again.output
    one, two = certificate(tmp_path / "one"), certificate(tmp_path / "two")
    assert one["account"]["id"] == two["account"]["id"]
    assert one["account"]["epsilon"] == pytest.approx(1.0, abs=1e-6)
    assert two["account"]["epsilon"] == pytest.approx(1.456, abs=0.01)
    for name in ("one", "two"):
        verdict = tacitly("verify", tmp_path / name)
        assert verdict.exit_code == 0, verdict.output
        assert "by now" in verdict.output


def test_ten_fits_do_not_each_claim_to_be_the_only_one(tmp_path: Path) -> None:
    rows = table(tmp_path / "rows.csv", users=30)
    for number in range(5):
        assert fit(rows, tmp_path / f"m{number}").exit_code == 0
    assert certificate(tmp_path / "m4")["account"]["epsilon"] == pytest.approx(2.3, abs=0.1)
    assert certificate(tmp_path / "m4")["epsilon"] == pytest.approx(1.0, abs=1e-6)


def test_dropping_or_adding_a_few_people_does_not_start_anew(tmp_path: Path) -> None:
    assert fit(table(tmp_path / "rows.csv", users=80), tmp_path / "one").exit_code == 0
    fewer = fit(table(tmp_path / "fewer.csv", users=79, seed=1), tmp_path / "two")
    assert "these users have spent ε = 1.00" in fewer.output
    shifted = fit(table(tmp_path / "shifted.csv", first=70, users=80), tmp_path / "three")
    assert "10 of these 80 users have spent ε = 1.46" in shifted.output
    others = fit(table(tmp_path / "others.csv", first=500, users=80), tmp_path / "four")
    assert "have spent" not in others.output
    both = fit(table(tmp_path / "both.csv", first=100, users=450), tmp_path / "five")
    assert both.exit_code == 0, both.output
    assert "50 of these 450 users have spent ε = 1.82" in both.output
    assert "50 of 450 user ids are also on another account" in " ".join(both.output.split())
    assert "which has spent ε = 1.00 (zero-out" in " ".join(both.output.split())
    for seen in home.known().values():
        assert tacitly("budget", "limit", seen.path, "--epsilon", 5).exit_code == 0
    unclear = fit(tmp_path / "both.csv", tmp_path / "six")
    assert "these users are in 2 accounts" in str(unclear.exception)


def test_an_account_for_a_roster_is_found_and_refuses_beyond_its_ceiling(tmp_path: Path) -> None:
    (tmp_path / "ids.csv").write_text("id\n" + "\n".join(f"p{user}" for user in range(80)) + "\n")
    made = tacitly(
        *("budget", "create", tmp_path / "people.ledger", "--epsilon", 1.2, "--roster", tmp_path / "ids.csv"),
        *("--renews", "yearly", "--curator", "The clinic", "--purpose", "Dosage"),
    )
    assert made.exit_code == 0, made.output
    assert "80 people (a closed roster)" in made.output
    rows = table(tmp_path / "rows.csv")
    first = fit(rows, tmp_path / "one")
    assert first.exit_code == 0, first.output
    assert certificate(tmp_path / "one")["curator"] == "The clinic"
    assert re.search(r"of it in \d{4}: 1.00; ceiling: 1.2", " ".join(first.output.split())), first.output
    second = fit(rows, tmp_path / "two")
    assert "this fit brings it to 1.46" in " ".join(second.output.split())
    assert "would bring epsilon to 1.4" in str(second.exception)
    assert not (tmp_path / "two").exists()
    stranger = fit(table(tmp_path / "more.csv", users=81), tmp_path / "three", epsilon=0.1)
    assert "1 of 81 users are not on the roster" in str(stranger.exception)
    twice = tacitly("budget", "create", tmp_path / "b.ledger", "--epsilon", 3, "--roster", tmp_path / "ids.csv")
    assert "already have an account" in str(twice.exception)
    assert not (tmp_path / "b.ledger").exists()


def test_another_ledger_for_the_same_people_is_told_and_certified_as_such(tmp_path: Path) -> None:
    rows = table(tmp_path / "rows.csv")
    fit(rows, tmp_path / "one")
    other = fit(rows, tmp_path / "two", "--ledger", tmp_path / "fresh.ledger")
    assert other.exit_code == 0, other.output
    assert "80 of 80 user ids are also on another account" in " ".join(other.output.split())
    assert "which has spent ε = 1.00 (zero-out" in " ".join(other.output.split())
    assert any("on another account" in note for note in certificate(tmp_path / "two")["notes"])
    (tmp_path / "fresh.ledger").unlink()
    lost = fit(rows, tmp_path / "three", "--ledger", tmp_path / "fresh.ledger")
    assert "the file is missing. Restore it from a backup" in str(lost.exception)


def test_an_account_that_is_gone_or_put_back_is_not_passed_over(tmp_path: Path) -> None:
    rows = table(tmp_path / "rows.csv")
    fit(rows, tmp_path / "one")
    ((name, seen),) = home.known().items()
    account, backup = Path(seen.path), tmp_path / "backup"
    shutil.copyfile(account, backup)
    assert "spent ε = 1.00" in tacitly("budget", backup).output  # looking at a copy does not move the account
    assert home.known()[name].path == str(account)
    backup.unlink()
    shutil.copyfile(account, backup)
    fit(rows, tmp_path / "two")
    shutil.copyfile(backup, account)
    assert "it is an older copy" in str(fit(rows, tmp_path / "three").exception)
    account.unlink()
    assert "but the file is missing" in str(fit(rows, tmp_path / "three").exception)
    shutil.move(backup, account)
    home.anchor_file(name).unlink()
    assert fit(rows, tmp_path / "three").exit_code == 0


def test_two_fits_at_once_share_one_new_account(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    from tacitly.cli.accounts import opened_account
    from tacitly.data.cohort import Cohort
    from tacitly.methods import REGISTRY

    cohort = Cohort.from_table(table(tmp_path / "rows.csv"), user="person", target="score")

    def account(number: int) -> Path:
        model = REGISTRY["fedrep"].build(rank=1, epsilon=1.0)
        with opened_account(model, cohort, None, tmp_path / f"m{number}") as path:
            return path

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(account, range(8)))) == 1


def test_a_ceiling_can_be_set_later_and_lowered_only(tmp_path: Path) -> None:
    fit(table(tmp_path / "rows.csv"), tmp_path / "one")
    (account,) = (seen.path for seen in home.known().values())
    assert "spent ε = 1.00 of 1.1" in tacitly("budget", "limit", account, "--epsilon", 1.1).output
    assert "only become lower" in str(tacitly("budget", "limit", account, "--epsilon", 2).exception)
    assert "would bring epsilon" in str(fit(tmp_path / "rows.csv", tmp_path / "two").exception)
    assert Path(account).name in tacitly("budget", "list").output.replace("\n", "")


def test_a_removed_model_can_be_fitted_again_under_its_name(tmp_path: Path) -> None:
    rows = table(tmp_path / "rows.csv")
    fit(rows, tmp_path / "model")
    shutil.rmtree(tmp_path / "model")
    again = fit(rows, tmp_path / "model")
    assert again.exit_code == 0, again.output
    assert {release["run"] for release in certificate(tmp_path / "model")["releases"]} == {"model 2"}


def test_a_seal_shows_what_was_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, backup, seal = tmp_path / "l.ledger", tmp_path / "backup", tmp_path / "seal.json"
    with Ledger(ledger, ceiling=1.0) as account:
        shutil.copyfile(ledger, backup)
        account.run("a", config={})
    assert tacitly("budget", "seal", ledger, "--out", seal).exit_code == 0
    assert "ok" in tacitly("budget", "check", ledger, seal).output
    monkeypatch.setenv("TACITLY_HOME", str(tmp_path / "another machine"))
    shutil.copyfile(backup, ledger)
    put_back = tacitly("budget", "check", ledger, seal)
    assert put_back.exit_code == 1
    assert "an older copy was restored" in put_back.output
    with Ledger(ledger) as account:
        account.run("b", config={})
    assert "was changed after the seal" in tacitly("budget", "check", ledger, seal).output
    Ledger(tmp_path / "other").close()
    assert "another account" in tacitly("budget", "check", tmp_path / "other", seal).output
    seal.write_text("{}")
    assert "must be a seal" in str(tacitly("budget", "check", ledger, seal).exception)
