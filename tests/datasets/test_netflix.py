"""The Netflix loader, and features by completion."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tacitly
from tacitly.datasets import load_netflix
from tacitly.datasets.completion import complete
from tacitly.datasets.ratings import ratings_of

TITLES = "1,1999,One, Two and Three\n2,NULL,No Year\n7,2004,Nobody Rated It\n"


@pytest.mark.parametrize("layout", ["combined", "one file per movie"])
def test_netflix_is_read_in_both_layouts(tmp_path: Path, layout: str) -> None:
    (tmp_path / "movie_titles.csv").write_text(TITLES, encoding="latin-1")
    blocks = ["1:\n30,4,2005-09-06\n31,1,2005-09-07\n", "2:\n30,5,2005-09-05\n"]
    if layout == "combined":
        (tmp_path / "combined_data_1.txt").write_text("".join(blocks))
    else:
        (tmp_path / "training_set").mkdir()
        for number, block in enumerate(blocks):
            (tmp_path / "training_set" / f"mv_{number}.txt").write_text(block)
    found = load_netflix(tmp_path)
    assert found.item_ids.tolist() == [1, 2, 7]  # the public list, rated or not
    assert (found.users.tolist(), found.items.tolist(), found.values.tolist()) == ([30, 31, 30], [0, 0, 1], [4, 1, 5])
    assert found.item_features.tolist() == [[1.0, -0.1], [1.0, 0.0], [1.0, 0.4]]
    assert found.times is not None
    assert (found.times - found.times.min()).tolist() == [1.0, 2.0, 0.0]


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(tacitly.DataError, match=r"no movie_titles\.csv"):
        load_netflix(tmp_path)
    (tmp_path / "movie_titles.csv").write_text(TITLES)
    with pytest.raises(tacitly.DataError, match="no ratings"):
        load_netflix(tmp_path)
    (tmp_path / "combined_data_1.txt").write_text("1:\nsomebody,4\n")
    with pytest.raises(tacitly.DataError, match="could not be read"):
        load_netflix(tmp_path)


def test_features_by_completion_say_that_nothing_covers_them() -> None:
    rng = np.random.default_rng(0)
    whole = rng.normal(size=(30, 2)) @ rng.normal(size=(2, 12))
    seen = np.flatnonzero(rng.random(whole.size) < 0.7)
    ratings = ratings_of(seen // 12, seen % 12, whole.ravel()[seen], {item: ("", ()) for item in range(12)})
    with pytest.warns(tacitly.UncertifiedWarning, match="no certificate covers"):
        features = ratings.uncertified_item_features(2)
    assert features.shape == (12, 2)
    right = np.linalg.svd(whole, full_matrices=False)[2][:2].T
    assert tacitly.subspace_distance(features / np.sqrt(12), right) < 0.2
    with pytest.raises(ValueError, match="rank must lie"):
        ratings.uncertified_item_features(13)


def test_known_cells_without_noise_are_kept() -> None:
    whole = np.outer(np.arange(1.0, 7.0), [1.0, 2.0, -1.0, 0.5])
    seen = np.flatnonzero(np.arange(24) % 4 != np.arange(24) // 6)
    found = complete(seen // 4, seen % 4, whole.ravel()[seen], (6, 4))
    assert np.abs(found - whole).max() < 0.5
