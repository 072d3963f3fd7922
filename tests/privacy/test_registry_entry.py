"""Certificates for the public: registry entries and labels, of every kind of certificate."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from datetime import date
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import tacitly
from tacitly.audit.attack import first_certificate
from tacitly.cli.main import app
from tacitly.methods import REGISTRY
from tacitly.methods.registry import Method
from tacitly.model_folder import ModelError, publish
from tacitly.privacy.certificate import Certificate
from tacitly.privacy.guarantee import Budget, GaussianEvent, SelectionEvent, Sensitivity
from tacitly.privacy.label import label
from tacitly.privacy.ledger import Ledger
from tacitly.privacy.registry import count_fields, registry_entry
from tacitly.privacy.release import Release

# The registry's groups, their fields, and the values of those that are lists of choices (opendp.org's schema).
GROUPS: dict[str, set[str]] = {
    "basic": {
        *("name", "data_curators", "intended_use", "data_product_type", "data_product_region", "description"),
        *("publication_date", "data_product_sector"),
    },
    "dp_variant": {"variant_name", "data_domain", "unprotected_quantities"},
    "privacy_loss": {
        *("privacy_unit", "privacy_unit_details", "privacy_parameters", "privacy_parameters_details"),
    },
    "deployment_model": {
        *("model_name", "model_name_details", "actors", "release_type", "release_type_details", "data_source_type"),
        *("data_source_type_details", "access_type", "access_type_details"),
    },
    "accounting": {"post_processing", "composition"},
    "implementation": {"preprocessing_and_hyperparameter_tuning", "mechanisms", "justification"},
    "administrative": {"sources", "notes", "registry_authors"},
}
REQUIRED = GROUPS["basic"] - {"data_product_sector"}
LISTS = {"data_curators", "registry_authors"}
CHOICES = {
    "data_product_sector": {"Technology", "Healthcare", "Education", "Government", "Energy", "Finance"},
    "data_product_type": {"Machine learning model"},
    "variant_name": {"Pure DP", "Approximate DP", "Zero-concentrated DP", "Renyi DP", "Custom"},
    "model_name": {"Local", "Central", "Shuffle", "Federated", "Varies"},
    "release_type": {"One release", "Many releases"},
    "data_source_type": {"Static", "Dynamic"},
    "access_type": {"Interactive", "Non-interactive"},
}


def certificate(event: Any, delta: float = 1e-6, **changes: Any) -> Certificate:
    kind = "exact" if isinstance(event, SelectionEvent) else "float"
    release = Release(
        run="fit", index=0, name="x", event=event, noise=kind, grid=0.1, coordinates=3, state="published", attempts=1
    )
    budget = Budget(epsilon=2.0, delta=delta)
    fields = {"algorithm": "Test", "mode": "certified", "budget": budget, "n_users": 500, "trust": "central", **changes}
    return Certificate(releases=(release,), **fields)


GAUSSIAN = GaussianEvent(sigma=5.0, sensitivity=Sensitivity.of_clip(1.0))
KINDS = {
    "sum": certificate(GAUSSIAN, curator="A <b>clinic</b>", purpose="Dosage", region="EU", notes=("heads are free",)),
    "sampled": certificate(replace(GAUSSIAN, sampling_rate=0.5)),
    "choice": certificate(SelectionEvent(scale=2.0), delta=0.0),
    "sites": certificate(GAUSSIAN, trust="every node adds its own noise; the coordinator sees noisy sums"),
}


def check(entry: dict[str, Any]) -> None:
    """Raise unless an entry has the fields, types and choices of the registry's schema, and most of its 32 fields."""
    assert set(entry) == {"url_slug", "status", "tier", "deployment"}
    assert sum(map(len, GROUPS.values())) == 32
    assert count_fields(entry) >= 28
    assert set(entry["deployment"]["basic"]) >= REQUIRED
    for group, content in entry["deployment"].items():
        assert set(content) <= GROUPS[group]
        for name, value in content.items():
            assert name not in CHOICES or value in CHOICES[name]
            kind = dict if name == "privacy_parameters" else list if name in LISTS else str
            assert isinstance(value, kind), name
            assert name not in LISTS or (value and all(isinstance(each, str) for each in value))
    date.fromisoformat(entry["deployment"]["basic"]["publication_date"])
    parameters = entry["deployment"]["privacy_loss"]["privacy_parameters"]
    assert set(parameters) <= {"epsilon", "delta", "rho"}
    assert all(isinstance(value, float) for value in parameters.values())
    assert json.loads(json.dumps(entry)) == entry


@pytest.mark.parametrize("method", REGISTRY.values(), ids=lambda method: method.name)
def test_a_certificate_of_every_method_is_an_entry_of_the_registry(method: Method) -> None:
    if "neural" in method.name:
        pytest.importorskip("torch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few synthetic users
        made = first_certificate(method.load()(**method.audits[0].built()))
    check(registry_entry(made, name=method.name))
    assert "ε = " in label(made, method.name)


@pytest.mark.parametrize("kind", KINDS)
def test_an_entry_has_the_registrys_fields_and_choices(kind: str) -> None:
    entry = registry_entry(KINDS[kind], name="My model 1", sector="Healthcare", sources="https://example.org")
    assert (entry["url_slug"], entry["status"], entry["tier"]) == ("my-model-1", "Draft", 3)
    check(entry)
    assert ("rho" in entry["deployment"]["privacy_loss"]["privacy_parameters"]) == (kind != "sampled")


def test_a_label_of_pure_privacy_makes_no_exception() -> None:
    pure, noisy = (label(KINDS[kind], "m") for kind in ("choice", "sum"))
    assert "except with probability" not in pure
    assert "except with probability about δ." in noisy
    assert "1 release with exact noise" in pure


def test_what_is_not_certified_is_not_registered() -> None:
    open_ = certificate(GAUSSIAN, mode="paper", reasons=("constants of a paper",))
    with pytest.raises(ValueError, match="claims no privacy"):
        registry_entry(open_, name="x")
    with pytest.raises(ValueError, match="sector must be one of"):
        registry_entry(KINDS["sum"], name="x", sector="Circus")
    assert "No privacy is claimed" in label(open_, "x")


@pytest.mark.parametrize("kind", KINDS)
def test_a_label_says_the_claim_and_what_is_not_covered_without_running_anything(kind: str) -> None:
    page = label(KINDS[kind], "My <script>model</script>")
    seen: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: object) -> None:
            seen.append(tag)

    Reader().feed(page)
    assert not {"script", "b", "img", "link", "a"} & set(seen)
    assert seen.count("h2") >= 5
    for item in (*KINDS[kind].not_covered, "ε = "):
        assert item.replace("'", "&#x27;") in page


def test_a_model_is_published_with_its_audit_and_words_recorded_and_signed(tmp_path: Path) -> None:
    data = tacitly.datasets.make_shared_subspace(60, 4, 1, 6, random_state=0)
    (tmp_path / "report.txt").write_text("the attacker guessed")
    with Ledger(tmp_path / "ledger") as ledger:
        model = tacitly.PrivateFedRep(rank=1, epsilon=2.0, ledger=ledger).fit(data.X, data.y, data.users)
        tacitly.save(model, tmp_path / "model", curator="The clinic")
        tacitly.save(model, tmp_path / "again")
    assert CliRunner().invoke(app, ["verify", str(tmp_path / "again")]).exit_code == 0
    with pytest.raises(ModelError, match="pass the ledger"):
        publish(tmp_path / "model", tmp_path / "no", purpose="Dosage")
    assert not (tmp_path / "no").exists()
    run = CliRunner().invoke
    words = ["--audit", str(tmp_path / "report.txt"), "--purpose", "Dosage", "--region", "EU"]
    done = run(app, ["publish", str(tmp_path / "model"), str(tmp_path / "public"), *words])
    assert done.exit_code == 0, done.output
    stated = Certificate.from_json((tmp_path / "public" / "certificate.json").read_text("utf-8"))
    assert (stated.curator, stated.purpose, stated.region) == ("The clinic", "Dosage", "EU")
    assert set(stated.files) == {"audit.txt", "billboard.safetensors", "config.json"}
    for folder in ("model", "public"):
        checked = run(app, ["verify", str(tmp_path / folder), "--delta", "1e-9"])
        assert checked.exit_code == 0, checked.output
        assert "at δ = 1e-09" in checked.output
    (tmp_path / "public" / "audit.txt").write_text("the attacker failed")
    assert run(app, ["verify", str(tmp_path / "public")]).exit_code == 1
    page, entry = tmp_path / "label.html", tmp_path / "entry.yaml"
    wrote = run(app, ["certificate", str(tmp_path / "model"), "--label", str(page), "--registry", str(entry)])
    assert wrote.exit_code == 0, wrote.output
    assert "of 32 fields" in wrote.output
    assert "The clinic" in page.read_text("utf-8")
    assert "everything on this account" in run(app, ["certificate", str(tmp_path / "model")]).output


def test_a_delta_of_one_over_n_warns_before_anything_is_spent() -> None:
    data = tacitly.datasets.make_shared_subspace(60, 4, 1, 6, random_state=0)
    with pytest.warns(tacitly.LargeDeltaWarning, match="not below 1/n"):
        tacitly.PrivateFedRep(rank=1, epsilon=2.0, delta=0.1).fit(data.X, data.y, data.users)
