"""MovieLens and Jester as people have them on disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tacitly
from tacitly.datasets import Ratings, load_jester, load_movielens
from tacitly.datasets.ratings import ratings_of
from tacitly.privacy.guarantee import Budget


def write(folder: Path, name: str, text: str, encoding: str = "latin-1") -> None:
    (folder / name).write_text(text, encoding=encoding)


@pytest.fixture
def hundred_thousand(tmp_path: Path) -> Ratings:
    write(tmp_path, "u.data", "1\t10\t4\t881250949\n1\t20\t2\t0\n2\t10\t5\t0\n")
    write(tmp_path, "u.genre", "unknown|0\nAction|1\nComedy|2\n\n")
    write(tmp_path, "u.item", "10|Café (1995)|01-Jan-1995||http://x|0|1|1\n20|Z (1969)|||http://y|0|0|1\n")
    write(tmp_path, "u.user", "1|24|M|writer|85711\n2|53|F|other|94043\n")
    write(tmp_path, "u.occupation", "other\nwriter\n")
    return load_movielens(tmp_path)


@pytest.fixture
def million(tmp_path: Path) -> Ratings:
    write(tmp_path, "ratings.dat", "1::10::4::978300760\n1::20::2::0\n2::10::5::0\n")
    write(tmp_path, "movies.dat", "10::Café (1995)::Action|Comedy\n20::Z (1969)::Comedy\n")
    write(tmp_path, "users.dat", "1::M::25::10::48067\n2::F::56::16::70072\n")
    return load_movielens(tmp_path)


@pytest.fixture
def latest(tmp_path: Path) -> Ratings:
    write(tmp_path, "ratings.csv", "userId,movieId,rating,timestamp\r\n1,10,4.0,9\r\n1,20,2.0,9\r\n2,10,5.0,9\r\n")
    write(
        tmp_path,
        "movies.csv",
        'movieId,title,genres\n10,"Café, Le (1995)",Action|Comedy\n20,Z (1969),Comedy\n',
        "utf-8",
    )
    return load_movielens(tmp_path)


@pytest.mark.parametrize("name", ["hundred_thousand", "million", "latest"])
def test_the_three_formats_say_the_same(name: str, request: pytest.FixtureRequest) -> None:
    ratings = request.getfixturevalue(name)
    assert ratings.users.tolist() == [1, 1, 2]
    assert ratings.item_ids[ratings.items].tolist() == [10, 20, 10]
    assert ratings.values.tolist() == [4.0, 2.0, 5.0]
    assert ratings.feature_names == ("one", "Action", "Comedy", "year")
    np.testing.assert_allclose(ratings.item_features, [[1, 1, 1, -0.5], [1, 0, 1, -3.1]])
    X, y, users = ratings.tasks()
    assert X.shape == (3, 4)
    assert y.tolist() == [4.0, 2.0, 5.0]
    assert users.tolist() == [1, 1, 2]
    assert ratings.matrix().toarray().tolist() == [[4.0, 2.0], [5.0, 0.0]]


def test_an_item_that_one_person_rates_changes_nothing_that_is_public(tmp_path: Path) -> None:
    """What a model is learned from has the shape of the catalogue, whoever rated what."""
    write(tmp_path, "movies.csv", "movieId,title,genres\n10,A (1990),Drama\n20,B (1991),Drama\n30,C (1992),War\n")
    rows = "userId,movieId,rating\n1,10,4\n2,10,3\n"
    public = []
    for more in ("", "2,30,5\n", "2,99,5\n"):
        write(tmp_path, "ratings.csv", rows + more)
        ratings = load_movielens(tmp_path)
        public.append((ratings.item_ids.tolist(), ratings.item_features.tolist(), ratings.matrix().shape))
        assert ratings.item_ids.tolist() == [10, 20, 30]
    assert public[0] == public[1] == public[2]
    assert ratings.values.tolist() == [4.0, 3.0]  # what is not in the catalogue is left out


def of_groups(users: list[int], groups: list[str], names: tuple[str, ...] | None = ("a", "b", "c")) -> Ratings:
    rows = len(users)
    items, values = np.arange(rows) % 2, np.arange(1.0, rows + 1)
    return Ratings(
        np.array(users), items, values, np.array([10, 20]), np.eye(2) + 1.0, ("p", "q"), np.array(groups), names
    )


def test_groups_are_tasks_with_mean_ratings(million: Ratings) -> None:
    X, y, tasks = of_groups([1, 1, 2], ["a"] * 3, ("a",)).tasks(by="group", adjacency="replace-one")
    assert y.tolist() == [2.0, 2.0]
    assert tasks.tolist() == ["a", "a"]
    np.testing.assert_array_equal(X, np.eye(2) + 1.0)
    tasks = million.tasks(by="group", adjacency="replace-one")[2]
    assert len(set(tasks)) == 2 * 7 * 21
    assert {"F 56 16", "M 25 10"} < set(tasks)


def test_the_list_of_groups_does_not_depend_on_who_is_there(hundred_thousand: Ratings) -> None:
    """Without its only member a group's rows are replaced, not its place on the list."""
    everybody, fewer = of_groups([1, 1, 2, 2], ["a", "a", "b", "b"]), of_groups([1, 1], ["a", "a"])
    for ratings in (everybody, fewer):
        X, y, tasks = ratings.tasks(by="group", adjacency="replace-one")
        assert sorted(set(tasks)) == ["a", "b", "c"]
        assert not X[tasks == "c"].any()
        assert not y[tasks == "c"].any()
        assert len(X) == len(y) == len(tasks)
    assert len(set(hundred_thousand.tasks(by="group", adjacency="replace-one")[2])) == 2 * 7 * 2


def test_a_person_is_in_one_group_only() -> None:
    moved = of_groups([1, 1, 2, 2], ["a", "b", "b", "b"]).tasks(by="group", adjacency="replace-one")
    same = of_groups([1, 1, 2, 2], ["a", "a", "b", "b"]).tasks(by="group", adjacency="replace-one")
    for left, right in zip(moved, same, strict=True):
        np.testing.assert_array_equal(left, right)


def test_groups_need_replace_one_and_a_public_list() -> None:
    with pytest.raises(ValueError, match="adjacency='replace-one'"):
        of_groups([1], ["a"]).tasks(by="group")
    with pytest.raises(tacitly.DataError, match="public list"):
        of_groups([1], ["a"], None).tasks(by="group", adjacency="replace-one")


def test_what_is_not_there_is_said(latest: Ratings, tmp_path: Path) -> None:
    with pytest.raises(tacitly.DataError, match="by='user'"):
        latest.tasks(by="group")
    with pytest.raises(tacitly.DataError, match="one row per item"):
        latest.tasks(features=np.ones((3, 2)))
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(tacitly.DataError, match="unpacked MovieLens"):
        load_movielens(empty)
    write(empty, "ratings.csv", "userId,movieId,rating\n1,x,3\n")
    with pytest.raises(tacitly.DataError, match="user, item and rating"):
        load_movielens(empty)
    with pytest.raises(tacitly.DataError, match="is not a file"):
        load_jester(empty / "jester.csv")


def test_jester_as_a_table_and_as_a_list(tmp_path: Path) -> None:
    write(tmp_path, "jester.csv", "2,-7.82,99,8.79\n1,99,4.08,99\n")
    table = load_jester(tmp_path / "jester.csv")
    assert table.values.tolist() == [-7.82, 8.79, 4.08]
    assert table.users.tolist() == [0, 0, 1]
    assert table.items.tolist() == [0, 2, 1]
    assert table.item_ids.tolist() == [0, 1, 2]
    assert table.feature_names == ("one",)
    write(tmp_path, "jester_ratings.dat", "1\t\t5\t\t0.219\n2\t\t7\t\t-9.281\n")
    listed = load_jester(tmp_path / "jester_ratings.dat", n_items=150)
    assert listed.values.tolist() == [0.219, -9.281]
    assert listed.item_ids[listed.items].tolist() == [5, 7]
    assert len(listed.item_ids) == 150
    with pytest.raises(tacitly.DataError, match="n_items"):
        load_jester(tmp_path / "jester_ratings.dat")
    write(tmp_path, "bad.csv", "1,2\n1,2,3\n")
    with pytest.raises(tacitly.DataError, match="rectangular"):
        load_jester(tmp_path / "bad.csv")


def test_item_features_can_be_bought_in_the_same_account() -> None:
    rng = np.random.default_rng(0)
    users, items = (part.ravel() for part in np.meshgrid(np.arange(400), np.arange(6), indexing="ij"))
    taste, kind = rng.normal(size=400), rng.normal(size=6)
    ratings = Ratings(users, items, 3.0 + taste[users] * kind[items], np.arange(6), np.ones((6, 1)), ("one",))
    ledger = tacitly.Ledger(ceiling=Budget(epsilon=10.0, delta=1e-5))  # a ceiling counts users
    features, bought = ratings.private_item_features(2, 4.0, ledger=ledger, run="items")
    assert features.shape == (6, 3)
    assert bought.certificate_.certified
    assert bought.certificate_.n_users == 400
    X, y, tasks = ratings.tasks(features=features)
    model = tacitly.LowRankSparse(1, 1, 4.0, ledger=ledger, run="users").fit(X, y, tasks)
    assert len(bought.certificate_.releases) + len(model.certificate_.releases) == len(ledger.releases())


@pytest.mark.parametrize("outside", [False, True])
def test_a_user_whose_items_are_all_outside_the_catalogue_stays_on_the_roster(outside: bool) -> None:
    """Else n_users, which is public, tells what that user rated."""
    users, items = np.repeat(np.arange(50), 3), np.tile([1, 2, 3], 50)
    items[users == 7] = 99 if outside else 1
    ratings = ratings_of(users, items, np.ones(150), {item: ("", ()) for item in (1, 2, 3)})
    X, y, tasks = ratings.tasks()
    assert len(np.unique(tasks)) == 50
    assert ratings.matrix().shape == (50, 3)
    if outside:
        assert not X[tasks == 7].any()
        assert not y[tasks == 7].any()
        assert ratings.matrix()[7].nnz == 0
