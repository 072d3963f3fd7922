"""The page of the papers: every item has a status and a place, and the page is what the data say."""

from __future__ import annotations

import re
from typing import Any

import pytest
from benchmarks.papers import page

ITEMS = [item for paper in page.papers() for item in paper["item"]]


def test_every_item_has_a_status_a_place_and_where_needed_a_reason() -> None:
    assert len(ITEMS) > 90
    assert not [problem for item in ITEMS for problem in page.problems(item)]


def test_all_five_papers_are_there() -> None:
    assert [paper["name"] for paper in page.papers()] == [
        "CENTAUR", "FedPower", "DP-RGrad", "Private FedRep", "AMHT-LRS",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"status": None}, "status must be one of"),
        ({"status": "not reproduced"}, "needs a reason"),
        ({"where": []}, "`where` is missing"),
        ({"where": ["{src}/nowhere.py"]}, "does not exist"),
        ({"where": ["{src}/theory/centaur.py::nothing"]}, "does not define nothing"),
        ({"number": 3}, "unknown key"),
    ],
)
def test_an_item_that_lacks_something_is_found(change: dict[str, Any], complaint: str) -> None:
    item = {"item": "x", "where": ["{src}/theory/centaur.py::utility"], "status": "works"}
    assert not page.problems(item)
    assert complaint in " ".join(page.problems(item | change))


def test_numbers_come_from_the_results() -> None:
    assert page.filled("{centaur_linear boosting/1:.3f}") == "0.695"
    with pytest.raises(ValueError, match="has nothing at"):
        page.filled("{centaur compare/[task=nothing]/accuracy:.1f}")
    with pytest.raises(KeyError):
        page.filled("{centaur_linear boosting/2:.3f}")


def test_an_error_above_the_printed_one_is_not_said_to_work() -> None:
    assert page.larger([0.02, 0.021], 0.01, 1e-3)
    assert not page.larger([0.02, 0.001], 0.01, 1e-3)  # within the spread of draws
    assert not page.larger([3e-11], 1e-12, 1e-13)


def test_an_error_far_below_the_printed_one_is_named() -> None:
    assert page.smaller([0.03, 0.031], 0.165, 0.03)
    assert not page.smaller([0.1, 0.11], 0.165, 0.03)  # within the spread of draws
    assert not page.smaller([1e-14], 1e-11, 1e-12)


def test_every_quoted_result_says_when_and_where_it_was_measured() -> None:
    for name in page.quoted():
        assert {"date", "machine"} <= set(page._results(name)), name


def test_make_names_every_program_that_writes_results() -> None:
    makefile = (page.ROOT / "Makefile").read_text(encoding="utf-8")
    for path in sorted((page.ROOT / "benchmarks").rglob("*.py")):
        module = ".".join(path.relative_to(page.ROOT).with_suffix("").parts)
        if re.search(r"^ +keep\(", path.read_text(encoding="utf-8"), re.MULTILINE):
            assert re.search(rf"-m {re.escape(module)}\b", makefile), f"add {module} to the Makefile's benchmarks."


def test_the_page_is_up_to_date() -> None:
    assert page.PAGE.read_text(encoding="utf-8") == page.text(), "Run make generated."
