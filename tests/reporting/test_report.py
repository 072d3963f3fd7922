"""The report: every method, both editions, hostile names, and nothing private in what is published."""

from __future__ import annotations

import shutil
import stat
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import tacitly
from tacitly.baselines.comparison import LOCAL, OURS, HeldOut, held_out
from tacitly.cli.main import app
from tacitly.heads.losses import Loss
from tacitly.methods import REGISTRY
from tacitly.model_folder import ModelError
from tacitly.privacy.verification import Verdict, verify
from tacitly.reporting import PublicPart, guarantee, report
from tacitly.reporting.charts import Scale, histogram
from tacitly.reporting.gains import helped
from tacitly.reporting.guarantee import timeline
from tacitly.reporting.learned import learned

HOSTILE = "</style><script>alert(1)</script><img src=//evil.example onerror=x>\"'&\u202e"
NOBODY_KNOWS = "The published numbers of this model, by name."
NAMES = [HOSTILE, "age", "dose"]


@pytest.fixture(scope="module", autouse=True)
def _verified_once() -> Iterator[None]:
    """Verify each certificate once in this file: the second opinion takes longer than the rest of a page."""
    found: dict[Any, Verdict] = {}

    def once(certificate: str, *, files: Any = None, **words: Any) -> Verdict:
        key = certificate, files is None
        return found.setdefault(key, found[key] if key in found else verify(certificate, files=files, **words))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(guarantee, "verify", once)
        yield


class Elements(HTMLParser):
    """Counts elements and collects addresses."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        self.tags.append(tag)
        self.addresses += [value for key, value in attributes if key in ("src", "href", "action", "srcset", "data")]
        assert not any(key.startswith("on") for key, _ in attributes)


def rows(seed: int = 0, users: int = 150) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(seed)
    ids = np.repeat([f"{HOSTILE}{i}" for i in range(users)], 6)
    X = rng.normal(size=(len(ids), 3))
    return X, X @ [1.0, -2.0, 0.5] + np.repeat(rng.normal(size=users), 6) + rng.normal(size=len(ids)), ids


@pytest.fixture(scope="module")
def cohort() -> tacitly.Cohort:
    return replace(tacitly.Cohort.from_arrays(*rows()), feature_names=tuple(NAMES), target_name=f"{HOSTILE} target")


@pytest.fixture(scope="module")
def model(cohort: tacitly.Cohort) -> tacitly.MixedEffects:
    return tacitly.MixedEffects(epsilon=8.0).fit(cohort)


@pytest.fixture
def folder(model: tacitly.MixedEffects, tmp_path: Path) -> Path:
    return tacitly.save(model, tmp_path / "model")


def checked(page: str) -> Elements:
    """Check what every page promises; return its elements."""
    found = Elements(page)
    assert not {"script", "iframe", "object", "embed", "form", "img"} & set(found.tags)
    assert all(address.startswith("#") or address == "data:," for address in found.addresses)
    assert "default-src &#x27;none&#x27;" in page
    assert "http" not in page.replace("http-equiv", "")
    assert found.tags.count("h1") == 1
    return found


def test_names_and_words_of_others_are_text_and_never_markup(model: Any, cohort: Any) -> None:
    certificate = replace(model.certificate_, curator=HOSTILE, purpose=HOSTILE, region=HOSTILE, notes=(HOSTILE,))
    hostile = tacitly.MixedEffects(epsilon=8.0)
    hostile.__dict__.update(model.__dict__ | {"certificate_": certificate})
    for page in (
        report(hostile, audit=HOSTILE, name=HOSTILE),
        report(hostile, audit=HOSTILE, name=HOSTILE, rows=cohort),
    ):
        checked(page)
        assert "alert(1)" in page


def test_the_public_edition_does_not_know_heads_ids_or_rows(folder: Path, tmp_path: Path) -> None:
    page = report(folder, name="m")
    assert f"{HOSTILE}3"[-3:] not in page
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    (other / "private" / "heads.safetensors").unlink()
    (other / "private" / "heads.safetensors").write_bytes(b"not even readable")
    assert report(other, name="m") == page
    shutil.rmtree(other / "private")
    assert report(other, name="m") == page


def test_the_public_edition_of_a_model_in_memory_is_that_of_its_folder_and_ignores_heads(model: Any) -> None:
    page = report(model, name="m")
    changed = tacitly.MixedEffects(epsilon=8.0)
    changed.__dict__.update(model.__dict__)
    changed.heads_, changed.users_ = model.heads_ + 7.0, model.users_[::-1]
    assert report(changed, name="m") == page
    again = model.with_heads_of(tacitly.Cohort.from_arrays(*rows(seed=1)))  # other rows, the same releases
    assert report(again, name="m") == page


def test_the_private_edition_would_change(model: Any, cohort: Any) -> None:
    other = replace(tacitly.Cohort.from_arrays(*rows(seed=1)), feature_names=tuple(NAMES))
    assert report(model, rows=cohort) != report(model, rows=other)


def test_only_the_private_edition_is_marked_and_it_is_on_screen_and_on_paper(model: Any, cohort: Any) -> None:
    public, private = report(model), report(model, rows=cohort)
    for mark in ("Do not publish", 'class="stamp"', "@top-center"):
        assert mark in private
        assert mark not in public
    assert "For whom did it help?" in private
    assert "For whom did it help?" not in public
    assert ["this page, byte for byte" in page for page in (public, private)] == [True, False]


def test_the_private_edition_is_for_its_owner_only(model: Any, cohort: Any, tmp_path: Path) -> None:
    report(model, tmp_path / "private.html", rows=cohort)
    report(model, tmp_path / "public.html")
    assert stat.S_IMODE((tmp_path / "private.html").stat().st_mode) == 0o600
    with pytest.raises(ValueError, match="exists already"):
        report(model, tmp_path / "public.html")


def test_it_says_what_the_certificate_says(model: Any) -> None:
    page, certificate = report(model), model.certificate_
    for words in (certificate.digest, certificate.trust.split(":")[0], *certificate.not_covered, "ε = 8.00"):
        assert str(words).replace("'", "&#x27;") in page
    for name, estimate in zip(model.summary().names[1:], model.summary().estimates[1:], strict=True):
        assert name.startswith("<") or name in page
        assert f"{abs(estimate):.4g}" in page


def test_a_model_without_privacy_claims_none() -> None:
    with pytest.warns(tacitly.UncertifiedWarning):
        model = tacitly.MixedEffects(epsilon=np.inf).fit(*rows())
    page = report(model)
    checked(page)
    assert "No privacy is claimed" in page
    assert "ε = ∞" not in page


def test_an_audit_that_breaks_the_claim_is_said_to(model: Any) -> None:
    assert "contradicts the claim" in report(model, audit="BROKEN: more is proved than is claimed")
    assert "did not contradict" in report(model, audit="fine")
    assert "No audit was published" in report(model)


def test_a_changed_folder_is_refused(folder: Path) -> None:
    (folder / "config.json").write_text((folder / "config.json").read_text().replace("age", "ages"))
    with pytest.raises(ModelError, match="changed after"):
        report(folder)


@pytest.mark.parametrize("method", [m for m in REGISTRY.values() if not m.network], ids=lambda method: method.name)
def test_every_method_is_shown_as_what_it_means(method: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarantee, "verify", lambda *_, **__: Verdict(()))
    X, y, users = rows()
    trial = method.trials[0]
    parameters = {**trial.parameters, "epsilon": 4.0}
    kind = method.load()
    if method.public_name == "Recommender":
        items = [f"{HOSTILE}{i}" for i in range(12)]
        given = (users, [items[i % 12] for i in range(len(users))], np.clip(3 + y / 3, 1, 5))
        model = kind(epsilon=4.0, items=items, rating_range=(1, 5)).fit(*given)
    elif method.command == "trace":
        model = kind(rank=1, epsilon=4.0, design="entries", shape=(4, 3)).fit(
            np.stack([np.arange(len(y)) % 4, np.arange(len(y)) % 3], axis=1), y
        )
    elif method.command == "svd":
        model = kind(n_components=2, epsilon=4.0).fit(X, None, users)
    else:
        rank = {"rank": 1} if method.rank == "rank" else {}
        targets = (y > 0).astype(int) if trial.labels else y
        words = {key: value for key, value in parameters.items() if key in ("epsilon", "loss", "classes", "sparsity")}
        model = kind(**words, **rank).fit(X, targets, users)
    part = PublicPart.of_model(model)
    assert NOBODY_KNOWS not in learned(part)
    page = report(model)
    checked(page)
    assert len(page.encode()) < 100_000


def test_classes_keep_their_names_in_both_editions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarantee, "verify", lambda *_, **__: Verdict(()))
    X, y, users = rows()
    named = np.where(y > 0, "yes", "no")
    model = tacitly.MixedEffects(epsilon=50.0, loss="logistic", classes=("no", "yes")).fit(X, named, users)
    numbered = tacitly.Cohort.from_arrays(X, (y > 0) * 1.0, users)
    pages = [report(model), report(model, rows=numbered), report(model, rows=(X, named, users))]
    assert all("is yes for one more unit" in page for page in pages)
    assert pages[1] == pages[2]


def test_networks_and_arrays_nobody_knows_are_listed(model: Any) -> None:
    part = PublicPart.of_model(model)
    network = replace(part, kind="neural.Centaur", arrays={"body.0": np.ones((3, 2)), "head.0": np.ones(2)})
    assert "3 × 2" in learned(network)
    assert NOBODY_KNOWS not in learned(network)
    strange = replace(part, arrays={"<b>": np.ones(4)})
    assert "&lt;b&gt;" in learned(strange)
    assert NOBODY_KNOWS in learned(strange)


def test_thousands_of_releases_and_columns_stay_small(model: Any) -> None:
    certificate = model.certificate_
    many = [replace(certificate.releases[0], index=i, name=f"round {i}") for i in range(3000)]
    assert len(timeline(replace(certificate, releases=tuple(many)))) < 20_000
    wide = replace(
        PublicPart.of_model(model), arrays={"basis": np.ones((5000, 10))}, features=tuple(f"x{i}" for i in range(5000))
    )
    assert len(learned(wide)) < 60_000


def test_gains_are_those_of_the_comparison(model: Any, cohort: Any) -> None:
    found = held_out(model, cohort)
    assert found is not None
    lines = {line.method: line.error for line in found.lines()}
    for method in (OURS, LOCAL):
        errors, counts = found.user_errors(method), np.diff(found.test.offsets)
        assert np.average(errors, weights=counts) == pytest.approx(lines[method])
    assert (found.rows_kept == 5).all()


def test_users_without_a_difference_are_neither_helped_nor_harmed() -> None:
    users = tacitly.Cohort.from_arrays(np.zeros((4, 1)), np.array([0.0, 1.0, 1.0, 0.0]), ["a", "a", "b", "b"])
    same = HeldOut(Loss("logistic"), users, np.array([2, 5]), dict.fromkeys((OURS, LOCAL), np.zeros(4)), {})
    page = helped(same)
    assert "for 100&nbsp;% as well, for 0&nbsp;% worse" in page
    assert "<figure" not in page
    better = replace(same, predictions={OURS: np.array([0, 1, 1, 0]), LOCAL: np.zeros(4)})
    assert "For 100&nbsp;% of 2 users" in helped(better)
    assert "5 to 8 rows" in helped(better)


def test_a_scale_holds_zero_and_all_values_and_a_histogram_everybody() -> None:
    scale = Scale.of(np.array([2.0, 5.0]), np.nan)
    assert scale.low == 0.0 < 5.0 < scale.high
    values = np.concatenate([np.linspace(-1, 3, 500), [1e6, -1e6]])
    rows = Elements(histogram(values, title="t", what="users", unit="u"))
    assert rows.tags.count("rect") == rows.tags.count("tr") - 1


def test_the_command_writes_both_editions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    X, y, users = rows()
    cells = [f"u{user[len(HOSTILE) :]},{x[0]},{x[1]},{x[2]},{t}" for x, t, user in zip(X, y, users, strict=True)]
    (tmp_path / "rows.csv").write_text("\n".join(["who,a,b,c,y", *cells]))
    run = CliRunner().invoke
    columns = ["--user", "who", "--target", "y"]
    assert run(app, ["fit", "rows.csv", *columns, "--epsilon", "8", "--no-compare"]).exit_code == 0
    assert run(app, ["report", "model"]).exit_code == 0
    assert run(app, ["report", "model", "--table", "rows.csv"]).exit_code == 0
    public, private = (tmp_path / f"model-{name}.html" for name in ("report", "private-report"))
    assert "When this page was made, every check passed." in public.read_text()
    assert "For whom did it help?" in private.read_text()
