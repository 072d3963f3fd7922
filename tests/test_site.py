"""The documentation is a site: every page is in the menu, every page kind is complete, outputs shown are real.

``make docs`` builds it with warnings as errors; these checks are what is cheap enough for every run of the tests.
"""

from __future__ import annotations

import importlib
import json
import math
import re
from pathlib import Path
from statistics import NormalDist
from typing import Any

import pytest
import yaml
from tools import docstrings, gallery, outputs, reference, site_hooks, versions

from tacitly.methods import REGISTRY
from tacitly.privacy.accounting import mu_of

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


class Configuration(yaml.SafeLoader):
    """Reads mkdocs.yml, whose Python objects do not matter here."""


Configuration.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)
SITE: dict[str, Any] = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Configuration)


def menu() -> list[str]:
    pages = [page for section in SITE["nav"] for page in next(iter(site_hooks._section(section, []).values()))]
    return [site_hooks.address(page) for page in pages]


def test_every_page_is_in_the_menu_and_every_entry_of_the_menu_is_a_page() -> None:
    generated = {*reference.pages(), *site_hooks.ROOT_PAGES.values(), "examples/index.md"}
    generated |= {f"examples/{path.stem}.md" for path in gallery.scripts()}
    written = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert not written & generated
    assert len(set(menu())) == len(menu())
    assert written - set(menu()) == set()
    assert set(menu()) - written - generated <= set(SITE["extra"]["slots"])


def test_a_page_that_is_not_written_yet_is_left_out_of_the_menu() -> None:
    section = {"Start": [{"Overview": "index.md"}, "plan.md"]}
    assert site_hooks._section(section, ["plan.md"]) == {"Start": [{"Overview": "index.md"}]}
    assert site_hooks._section(section, []) == section


def test_nothing_is_fetched_from_elsewhere() -> None:
    assert SITE["theme"]["font"] is False
    assert SITE["strict"] is True
    assert not {"analytics", "polyfills", "social"} & set(SITE["extra"])
    for name in [*SITE["extra_css"], SITE["theme"]["logo"], SITE["theme"]["favicon"]]:
        assert not re.search(r"https?://(?!www\.w3\.org)|@import", (DOCS / name).read_text(encoding="utf-8")), name
    assert "extra_javascript" not in SITE
    for page in DOCS.glob("*.md"):
        assert not re.search(r"!\[[^\]]*\]\(http|<(script|img|iframe|link)\b", page.read_text(encoding="utf-8")), page


@pytest.mark.parametrize("picture", sorted(DOCS.glob("images/threat-*.svg")), ids=lambda path: path.stem)
def test_pictures_of_threats_say_in_words_what_they_show(picture: Path) -> None:
    text = picture.read_text(encoding="utf-8")
    assert re.search(r"<title id=\"t\">.{10,}</title>", text)
    assert re.search(r"<desc id=\"d\">.{60,}</desc>", text)
    assert not re.search(r"href=|<script|url\((?!#a\))", text)


SECTIONS = ("The idea", "The formula", "The guarantee", "Example", "The paper's numbers beside ours", "Limits")


@pytest.mark.parametrize("page", sorted({m.page.partition("#")[0] for m in REGISTRY.values()}))
def test_every_page_of_a_method_answers_the_same_questions(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    assert [name for name in SECTIONS if f"\n## {name}\n" not in text] == []
    assert "*Proof sketch" in text
    assert "```python\n" in text


def test_links_into_the_repository_lead_to_pages_of_the_site() -> None:
    text = (
        "See [a](../src/tacitly/linalg.py), [b](privacy.md#terms), [c](../CONTRIBUTING.md), [d](../examples/films.py)."
    )
    there = (
        "See [a](source/src/tacitly/linalg.py.md), [b](privacy.md#terms), [c](contributing.md), [d](examples/films.md)."
    )
    assert site_hooks.retargeted(text, "") == there
    assert site_hooks.from_root("[a](docs/privacy.md) `[b](c)`\n```\n[x](y)\n```").startswith("[a](../docs/privacy.md)")
    assert site_hooks.retargeted("[a](../README.md#install)", "") == "[a](index.md)"
    for path in site_hooks.linked_sources():
        assert (ROOT / path).exists(), path


def test_the_reference_has_everything_public_with_a_docstring() -> None:
    named = [name for group in reference.members().values() for name in group]
    assert len(set(named)) == len(named)
    for full in named:
        home, _, name = full.rpartition(".")
        assert getattr(importlib.import_module(home), name).__doc__, full
    text = reference.commands()
    assert all(f"## tacitly {name}\n" in text for name in ("fit", "verify", "budget create"))


def test_doctests_get_a_heading_and_roles_become_code() -> None:
    assert docstrings.readable("A.\n\n>>> 1\n1") == "A.\n\nExamples\n--------\n>>> 1\n1"
    assert docstrings.readable(":meth:`release <a.B.release>` of :mod:`a.b`") == "`release` of `b`"


def test_names_that_share_a_description_get_one_entry_each() -> None:
    text = "A.\n\nParameters\n----------\na, b\n    Two.\n\nAttributes\n----------\nc_, d_ : both\n    of them\n"
    two = "a\n    Two.\nb\n    Two.\n\nAttributes\n----------\nc_\n    both\n    of them\nd_\n    both\n    of them\n"
    assert docstrings.readable(text) == f"A.\n\nParameters\n----------\n{two}"


def test_a_script_becomes_a_page() -> None:
    code = '"""Title.\n\nAbout ``it``.\n"""\n\nx = 1  # stays\n\n# Words about\n# ``x``.\ny = 2\n# stays too\n'
    assert gallery.pieces(code) == [
        ("code", "x = 1  # stays"),
        ("text", "Words about `x`."),
        ("code", "y = 2\n# stays too"),
    ]


def test_the_table_of_epsilons_is_right() -> None:
    """Numbers for doctors: odds of e^ε against one, and the best guess under Gaussian noise."""
    text = (DOCS / "reading-epsilon.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\d.]+) \| ([\d.]+) % \| ([\d.]+) % \|$", text, re.MULTILINE)
    assert len(rows) == 6
    for epsilon, sure, right in rows:
        odds = math.exp(float(epsilon))
        assert float(sure) == pytest.approx(100 * odds / (1 + odds), abs=0.051)
        assert float(right) == pytest.approx(100 * NormalDist().cdf(mu_of(float(epsilon), 1e-6) / 2), abs=0.051)


@pytest.mark.parametrize("page", outputs.console_pages(), ids=lambda path: path.stem)
def test_commands_print_what_pages_show(page: Path, tmp_path: Path) -> None:
    shown = page.read_text(encoding="utf-8")
    assert outputs.shape(outputs.rerun(shown, tmp_path, marked=False)) == outputs.shape(shown)


SMALL = {"digits": ("30",), "own_network": ("40",)}
"""Numbers of users with which an example takes a second or two; too few to learn from."""


@pytest.mark.parametrize(
    "path", [path for path in gallery.scripts() if path.stem not in outputs.APART], ids=lambda path: path.stem
)
def test_examples_print_what_their_pages_show(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one process, which imports the libraries once."""
    monkeypatch.chdir(tmp_path)
    shown = (ROOT / "examples" / "outputs" / f"{path.stem}.txt").read_text(encoding="utf-8")
    assert outputs.shape(outputs.example(path, *SMALL.get(path.stem, ()))) == outputs.shape(shown)


def test_versions_are_listed_with_the_newest_first_and_none_is_lost(tmp_path: Path) -> None:
    for version in ("0.9.0", "0.10.0rc1", "0.2.0", "0.10.0", "0.9.0"):
        found = versions.listed(tmp_path, version)
    assert found == ["0.10.0", "0.10.0rc1", "0.9.0", "0.2.0"]
    entries = json.loads((tmp_path / "versions.json").read_text(encoding="utf-8"))
    assert [entry["version"] for entry in entries] == found
    assert "url=0.10.0/" in (tmp_path / "index.html").read_text(encoding="utf-8")


def test_the_menu_of_versions_is_there_only_where_there_are_several(monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    def configured() -> Any:
        return site_hooks.on_config(SimpleNamespace(site_name="tacitly", extra={}, nav=[]))

    assert "version" not in configured().extra
    monkeypatch.setenv(versions.SEVERAL, "1")
    assert configured().extra["version"] == {"provider": "mike"}
