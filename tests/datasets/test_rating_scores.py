"""Splits and scores of ratings, by hand; loaders of the sets that have no groups."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest

import tacitly
from tacitly.datasets import load_jester, load_movielens, load_ratings, make_ratings
from tacitly.datasets.rating_scores import coverage, held_out, ndcg, recall, rmse, rmse_by_popularity


def test_a_share_of_each_users_ratings_is_held_out() -> None:
    users = np.repeat([3, 1, 2], [10, 4, 25])
    test = held_out(users, random_state=0)
    assert [int(test[users == user].sum()) for user in (1, 2, 3)] == [0, 5, 2]
    assert (test == held_out(users, random_state=0)).all()


def test_a_split_by_time_holds_out_the_latest() -> None:
    times = np.array([5.0, 1, 2, 3, 4, 9, 8, 7, 6, 0])
    assert np.flatnonzero(held_out(np.zeros(10), how="time", times=times)).tolist() == [5, 6]
    with pytest.raises(ValueError, match="needs times"):
        held_out([1], how="time")
    with pytest.raises(ValueError, match="how must be"):
        held_out([1], how="random")


def test_scores_by_hand() -> None:
    best = np.array([[0, 1], [2, -1]])
    rows, items, gains = np.array([0, 0, 0, 1]), np.array([1, 3, 4, 0]), np.array([3.0, 1.0, 0.0, 2.0])
    ideal = 3.0 + 1.0 / np.log2(3)
    assert ndcg(best, rows, items, gains) == pytest.approx((3.0 / np.log2(3) / ideal + 0.0) / 2)
    assert recall(best, rows, items) == pytest.approx((1 / 2 + 0) / 2)
    assert coverage(best, 6) == 0.5
    assert rmse([1.0, 3.0], [1.0, 1.0]) == pytest.approx(np.sqrt(2.0))
    by = rmse_by_popularity(np.array([1.0, 2.0]), np.array([0.0, 0.0]), np.array([5, 1000]))
    np.testing.assert_array_equal(by, [1.0, np.nan, np.nan, 2.0])


def test_ten_million_has_no_users_file_and_times_are_kept(tmp_path: Path) -> None:
    (tmp_path / "ratings.dat").write_text("1::10::4.5::978300760\n2::20::0.5::12\n")
    (tmp_path / "movies.dat").write_text("10::Alien (1979)::Horror|Sci-Fi\n20::Z (1969)::(no genres listed)\n")
    ratings = load_movielens(tmp_path)
    assert ratings.values.tolist() == [4.5, 0.5]
    assert ratings.groups is None
    assert ratings.times is not None
    assert ratings.times.tolist() == [978300760.0, 12.0]
    assert ratings.catalogue_features.shape == (2, 4)  # two genres, the year and its square
    (tmp_path / "ratings.dat").write_text("1::10\n")
    with pytest.raises(tacitly.DataError, match="could not be read"):
        load_movielens(tmp_path)


def test_a_zipped_table_of_jester_is_read(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "jester.csv.zip", "w") as archive:
        archive.writestr("jester.csv", "2,1.5,99,-3\n1,99,99,7\n")
    ratings = load_jester(tmp_path / "jester.csv.zip")
    assert ratings.values.tolist() == [1.5, -3.0, 7.0]
    assert ratings.catalogue_features.shape == (3, 0)


def test_any_table_of_ratings_is_read_by_the_names_of_its_columns(tmp_path: Path) -> None:
    (tmp_path / "plays.csv").write_text("who,what,stars,when\na,x,4,1\nb,z,2,2\nb,y,1.5,3\n")
    users, items, values, times = load_ratings(
        tmp_path / "plays.csv", ["x", "y"], user="who", item="what", rating="stars", time="when"
    )
    assert (users.tolist(), items.tolist()) == (["a", "b"], ["x", "y"])
    assert values is not None
    assert times is not None
    assert (values.tolist(), times.tolist()) == ([4.0, 1.5], [1.0, 3.0])
    with pytest.raises(tacitly.DataError, match="no column 'rating'"):
        load_ratings(tmp_path / "plays.csv", ["x"], user="who", item="what")
    with pytest.raises(tacitly.DataError, match="used once"):
        load_ratings(tmp_path / "plays.csv", ["x"], user="who", item="what", rating="what")
    (tmp_path / "plays.csv").write_text("user,item,rating\na,x,good\n")
    with pytest.raises(tacitly.DataError, match="must be numbers"):
        load_ratings(tmp_path / "plays.csv", ["x"])


def test_generated_ratings_have_the_skew_of_real_ones() -> None:
    ratings = make_ratings(400, 200, mean_ratings=30, random_state=0)
    counts = np.sort(np.bincount(ratings.items, minlength=200))[::-1]
    assert counts[:40].sum() > 0.4 * counts.sum()
    assert len(np.unique(ratings.users)) == 400
    assert len(np.unique(ratings.users * 200 + ratings.items)) == len(ratings.users)
