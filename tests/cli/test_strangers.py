"""Usability tests: what strangers with tables of their own tripped over, each written down before it was mended."""

from __future__ import annotations

import errno
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse
from sklearn.exceptions import NotFittedError
from tests.cli.test_everyday import Command, command

import tacitly
from tacitly import model_folder
from tacitly.baselines import comparison
from tacitly.baselines.comparison import LOCAL, MEANS, OURS, SINGLE, TWIN, Line, held_out, verdict
from tacitly.cli import console
from tacitly.data.misfits import misfits
from tacitly.data.schema import Schema
from tacitly.data.tables import open_table
from tacitly.data.validation import DataError
from tacitly.portable import write_private
from tacitly.privacy.ledger import LedgerMismatch, RunInUse

__all__ = ["command"]

FIT = ("--user", "who", "--target", "y", "--epsilon", 4)


def rows(users: int = 300, each: int = 5) -> pd.DataFrame:
    rng = np.random.default_rng(3)
    who = np.repeat(np.arange(users), each)
    a, place = rng.normal(0, 1, len(who)), rng.choice(["North", "South"], len(who))
    y = 10.0 + rng.normal(0, 2, users)[who] + 1.5 * a + 2.0 * (place == "South") + rng.normal(0, 0.5, len(who))
    return pd.DataFrame({"who": who, "a": a.round(3), "place": place, "y": y.round(3)})


def test_a_categorical_column_of_parquet_is_text_and_not_a_number(command: Command, tmp_path: Path) -> None:
    """Its stored type names its indices, int32: a fit said that its cells were no numbers."""
    pq.write_table(pa.Table.from_pandas(rows().astype({"place": "category"})), tmp_path / "t.parquet")
    code, out, err = command("fit", "t.parquet", *FIT, "--no-compare")
    assert code == 0, err
    assert "saves budget): place" in " ".join(out.split())
    flags = pa.table({"f": pa.array([True, False]).dictionary_encode(), "n": pa.array([1, 2]).dictionary_encode()})
    kinds = tacitly.data.schema.infer(open_table(flags), ["f", "n"])
    assert [column.kind for column in kinds.columns] == ["boolean", "number"]


@pytest.mark.parametrize(
    ("loss", "odd", "said"), [("poisson", -2, "1 row below zero"), ("logistic", 7, "1 row with a label outside")]
)
def test_a_target_that_the_loss_cannot_use_is_refused_before_it_costs_anything(
    command: Command, tmp_path: Path, loss: str, odd: int, said: str
) -> None:
    """The fit spent its epsilon, then the comparison raised: no summary, exit code 2, and a model all the same."""
    frame = rows()
    frame["y"] = (frame["y"] > 10).astype(int)
    frame.loc[5, "y"] = odd
    frame.to_csv(tmp_path / "t.csv", index=False)
    code, _, err = command("fit", "t.csv", *FIT, "--loss", loss, "--ledger", "l.ledger")
    assert code == 2
    assert said in err
    assert not (tmp_path / "model").exists()
    assert not (tmp_path / "l.ledger").exists()


@pytest.mark.parametrize("stop", [console.Interrupted, MemoryError])
def test_a_fit_is_complete_without_its_comparison(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: type[BaseException]
) -> None:
    """Ctrl-C during it said to run the same command again, which then said that the model exists already."""

    def stopped(*_: object, **__: object) -> None:
        raise stop

    monkeypatch.setattr(comparison, "held_out", stopped)
    rows().to_csv(tmp_path / "t.csv", index=False)
    code, out, err = command("fit", "t.csv", *FIT)
    assert code == 0, err
    assert "The model is complete." in out
    assert "mixed effects of 300 users" in out
    assert "model: model/" in out


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        (("--levels", "place=north,south"), "100 % of its cells at levels that are not declared (capital letters"),
        (("--range", "a=10:20"), "100 % of its values outside the declared range"),
    ],
)
def test_a_declaration_that_fits_no_cell_is_refused_before_it_costs_anything(
    command: Command, tmp_path: Path, declared: tuple[str, str], said: str
) -> None:
    """README declared north and south for a table with North and South: all cells were missing, and nobody said so."""
    rows().to_csv(tmp_path / "t.csv", index=False)
    code, _, err = command("fit", "t.csv", *FIT, *declared)
    assert code == 2
    assert said in err
    assert "Nothing was spent." in err
    assert not (tmp_path / "model").exists()


def test_what_looks_wrong_is_noted_for_whoever_holds_the_table(command: Command, tmp_path: Path) -> None:
    frame = rows().assign(weight=60.0, kilo=70.5, none=np.nan)
    frame["kilo"] += np.arange(len(frame)) % 9
    frame.loc[::30, "kilo"] = -9
    frame.loc[::40, "place"] = "Harbour"
    frame["y"] = (frame["y"] > 10).astype(int)
    frame.to_csv(tmp_path / "t.csv", index=False)
    code, out, err = command("fit", "t.csv", *FIT, "--levels", "place=North,South", "--no-compare")
    assert code == 0, err
    said = " ".join(out.split())
    for words in (
        "column 'kilo' has -9 in several rows, apart from all its other values",
        "add --missing kilo=-9.",
        "column 'weight' has the same value in every row",
        "column 'none' has no value in any row",
        "column 'place' has 3 % of its cells at levels that are not declared",
        "y is 0 or 1 in every row. For classes, stop here and add --loss logistic.",
    ):
        assert words in said, words


def test_measurements_are_not_taken_for_codes() -> None:
    """A negative among negatives, a zero-centred score, a long tail, an age of 99, a single odd cell: no notes."""
    rng = np.random.default_rng(0)
    n = 3000
    tail = np.append(rng.lognormal(3, 2, n - 3).round(), [999.0] * 3)
    single = rng.uniform(40, 90, n).round(1)
    single[0] = -9
    frame = pd.DataFrame(
        {
            "temperature": rng.normal(0, 8, n).round(),
            "score": rng.integers(-1, 2, n),
            "change": rng.choice([-1, 0, 1, 2], n),
            "age": rng.integers(18, 100, n),
            "tail": tail,
            "single": single,
            "y": rng.normal(size=n),
        }
    )
    schema = Schema.declared({name: {} for name in frame.columns if name != "y"})
    assert misfits(open_table(frame), schema, "y") == {}
    coded = frame.assign(y=np.where(np.arange(n) % 50, 5.0 + np.abs(frame["y"]), 999.0))
    assert misfits(open_table(coded), schema, "y")["y"].code == "999"


def test_far_too_few_users_are_told_before_anything_is_spent(command: Command, tmp_path: Path) -> None:
    rows(20).to_csv(tmp_path / "t.csv", index=False)
    words = ("fit", "t.csv", "--user", "who", "--target", "y", "--epsilon", 1, "--exclude", "place", "--no-compare")
    code, out, _ = command(*words)
    assert code == 0
    said = " ".join(out.split())
    assert "note: 20 users are few for 1 feature at ε = 1; about" in said
    assert said.index("most likely nothing will be shared") < said.index("ε = 1.00 (zero-out)")
    advised = re.search(r"'tacitly (plan --users 20 --rows 5 --features 1)'", said)  # as printed: it had no --rows
    assert advised
    code, _, err = command(*advised[1].split(), "--epsilon", 1, "--repeats", 1)
    assert code == 0, err


def test_a_thousand_columns_are_not_all_listed(command: Command, tmp_path: Path) -> None:
    frame = pd.concat([rows(30), pd.DataFrame(np.random.default_rng(0).normal(size=(150, 60))).add_prefix("f")], axis=1)
    frame.to_csv(tmp_path / "t.csv", index=False)
    code, out, err = command("fit", "t.csv", *FIT, "--exclude", "place", "--no-compare")
    assert code == 0, err
    assert "f38, and 21 more" in " ".join(out.split())


def test_one_absurd_cell_does_not_decide_whether_sharing_helped() -> None:
    """The error of all methods was that of one user with a cell of a billion: "Sharing did not help"."""
    frame = rows(300)
    frame.loc[17, "y"] = 1e9
    cohort = tacitly.Cohort.from_table(frame, user="who", target="y", schema={})
    model = tacitly.MixedEffects(epsilon=8.0).fit(cohort)
    held = held_out(model, cohort)
    assert held is not None
    cleaned, left_out = held.without_absurd_users()
    assert left_out == 1
    assert cleaned.test.n_users == 299
    ours = {line.method: line.error for line in cleaned.lines()}
    assert ours[OURS] < 1.0 < 1e6 < {line.method: line.error for line in held.lines()}[MEANS]
    page = tacitly.report(model, rows=(frame[["a", "place"]], frame["y"], frame["who"]))
    assert "Sharing helped" in page
    assert "Left out here: 1 of all users" in page
    again, more = cleaned.without_absurd_users()
    assert more == 0
    assert again is cleaned


def test_the_verdict_says_where_there_was_hardly_anything_to_learn() -> None:
    """Pure noise: "Sharing helped: the error is 16 % below that of the users' own means"."""
    errors = {MEANS: (1.23, -0.19), LOCAL: (1.23, -0.19), SINGLE: (1.033, 0.001), TWIN: (1.03, 0.0), OURS: (1.032, 0.0)}
    lines = [Line(method, "", error, score, 0.001) for method, (error, score) in errors.items()]
    assert verdict(lines).endswith("But hardly anything was learned: one number for everybody predicts about as well.")


def test_names_with_commas_can_be_left_out(command: Command, tmp_path: Path) -> None:
    rows().rename(columns={"place": "place, as told"}).to_csv(tmp_path / "t.csv", index=False)
    code, out, err = command("fit", "t.csv", *FIT, "--exclude", "place, as told", "--no-compare")
    assert code == 0, err
    assert "as told" not in out


def test_small_questions_get_answers(command: Command, tmp_path: Path) -> None:
    frame = rows()
    yes = (frame["y"] > 10).astype(int)
    model = tacitly.MixedEffects(epsilon=8.0, loss="logistic").fit(frame[["a", "place"]], yes, frame["who"])
    model.user_column_ = "who"
    tacitly.save(model, tmp_path / "classes")
    frame.drop(columns=["a", "place"]).to_csv(tmp_path / "t.csv", index=False)
    code, _, err = command("predict", "classes", "t.csv", "--std")
    assert code == 2
    assert "This model predicts classes: use --proba." in err
    code, _, err = command("predict", "classes", "t.csv")
    assert code == 2
    assert "no column 'a', 'place'" in err or "no feature columns 'a', 'place'" in err
    code, _, err = command("fit", "-", *FIT)
    assert code == 2
    assert "cannot come from standard input" in err
    frame.assign(y=["k.A.", *map(str, frame["y"][1:])]).to_csv(tmp_path / "odd.csv", index=False)
    code, _, err = command("fit", "odd.csv", *FIT)
    assert code == 2
    assert "If these stand for missing values: --missing unknown,-9." in err
    code, _, err = command("fit", "odd.csv", *FIT, "--missing", "k.A.", "--range", "plac=0:1")
    assert code == 2
    assert "Did you mean 'place'?" in err


def test_in_python_a_summary_shows_itself_and_mistakes_are_named() -> None:
    frame = rows(100)
    X, y, who = frame[["a", "place"]], frame["y"], frame["who"]
    model = tacitly.MixedEffects(epsilon=8.0).fit(X, y, who)
    assert repr(model.summary()) == str(model.summary())
    assert str(model.summary()).splitlines()[-1].startswith("NAME#3: a group of values of text column NAME")
    with pytest.raises(DataError, match="X is a mapping"):
        tacitly.MixedEffects(epsilon=8.0).fit(dict(X), y, who)
    with pytest.raises(DataError, match="y is a single text"):
        tacitly.MixedEffects(epsilon=8.0).fit(X, "y", "who")
    with pytest.raises(DataError, match="Column 'a': expected a mapping"):
        tacitly.MixedEffects(epsilon=8.0, schema={"a": (0, 1)}).fit(X, y, who)  # type: ignore[dict-item]

    class Lazy:
        def collect(self) -> None: ...
        def lazy(self) -> None: ...

    with pytest.raises(DataError, match="Collect it first"):
        tacitly.MixedEffects(epsilon=8.0).fit(Lazy(), y, who)


def test_a_place_that_cannot_be_written_is_found_before_it_costs_anything(command: Command, tmp_path: Path) -> None:
    """The fit spent its epsilon, then no folder could be made: "[Errno 2] No such file or directory"."""
    rows().to_csv(tmp_path / "t.csv", index=False)
    (tmp_path / "file").write_text("not a folder")
    code, _, err = command("fit", "t.csv", *FIT, "--out", "file/model", "--ledger", "l.ledger")
    assert code == 2
    assert "cannot be written" in err
    assert "Nothing was spent." in err
    assert not (tmp_path / "l.ledger").exists()


@pytest.mark.parametrize("name", ["show", "create", "list", "limit", "seal"])
def test_help_of_accounts_shows_no_backslashes(command: Command, name: str) -> None:
    code, out, _ = command("budget", name, "--help")
    assert code == 0
    assert "\\[" not in out


def test_summaries_of_classes_and_counts_say_what_their_numbers_are_of() -> None:
    """They said "target: sick" and nothing else: log odds of what, of yes or of no?"""
    frame = rows()
    X, y, who = frame[["a"]], frame["y"], frame["who"]
    for options, target, said in (
        ({"loss": "logistic", "classes": ("no", "yes")}, np.where(y > 10, "yes", "no"), "the log odds that it is yes"),
        ({"loss": "logistic", "classes": (0, 1, 2)}, np.digitize(y, [8, 12]), "the log odds of each class against the"),
        (
            {"loss": "poisson"},
            y.round().clip(0).astype(int),
            "log rates; overdispersion (std. dev.)",
        ),
    ):
        model = tacitly.MixedEffects(epsilon=8.0, **options).fit(X, target, who)  # type: ignore[arg-type]
        assert f"; estimates are of {said}" in str(model.summary()).splitlines()[1]


def test_accounts_for_other_people_with_the_same_ids_can_be_made(command: Command, tmp_path: Path) -> None:
    """Two studies number their people from 1: the second could have no account with a ceiling."""
    pd.DataFrame({"order": [7, 8, 9], "id": ["guest1", "guest2", "guest3"]}).to_csv(tmp_path / "ids.csv", index=False)
    code, out, err = command("budget", "create", "a.ledger", "--epsilon", 3, "--roster", "ids.csv", "--user", "id")
    assert code == 0, err
    assert "a.ledger" in out.splitlines()[0]
    code, _, err = command("budget", "create", "b.ledger", "--epsilon", 3, "--roster", "ids.csv", "--user", "id")
    assert code == 2
    assert "leave out --roster and name the new account at each fit: --ledger b.ledger" in " ".join(err.split())
    code, out, err = command("budget", "create", "b.ledger", "--epsilon", 3)
    assert code == 0, err


def test_numbers_that_are_no_counts_are_noted_before_they_cost_anything(command: Command, tmp_path: Path) -> None:
    """Marks with two decimals were taken for counts without a word, as glm() does not in R."""
    frame = rows()
    frame.assign(y=frame["y"].clip(lower=0)).to_csv(tmp_path / "t.csv", index=False)
    frame.assign(y=frame["y"].clip(lower=0).round()).to_csv(tmp_path / "counts.csv", index=False)
    code, out, err = command("fit", "t.csv", *FIT, "--loss", "poisson", "--no-compare")
    assert code == 0, err
    assert "note: y is not a whole number everywhere." in out
    assert (
        "whole number" not in command("fit", "counts.csv", *FIT, "--loss", "poisson", "--no-compare", "--out", "b")[1]
    )


def test_a_folder_that_is_not_there_is_named_without_the_systems_number(command: Command, tmp_path: Path) -> None:
    rows().to_csv(tmp_path / "t.csv", index=False)
    assert command("fit", "t.csv", *FIT, "--no-compare")[0] == 0
    code, _, err = command("predict", "model", "t.csv", "--out", "nowhere/p.csv")
    assert code == 2
    assert "the folder nowhere does not exist." in err
    assert "Errno" not in err


def test_a_catalogue_may_have_yes_and_no_and_mistakes_in_it_are_named(command: Command, tmp_path: Path) -> None:
    """Data frames write True and False, which the command refused and Python took."""
    films = tacitly.datasets.make_ratings(200, 12, mean_ratings=6, random_state=0)
    ids = [f"film {i}" for i in range(12)]
    table = pd.DataFrame({"film": ids, "drama": [True, False] * 6, "genre": ["a", "b"] * 6})
    table.to_csv(tmp_path / "films.csv", index=False)
    ratings = pd.DataFrame({"who": films.users, "film": [ids[i] for i in films.items], "stars": films.values})
    ratings.to_csv(tmp_path / "r.csv", index=False)
    words = ("recommend", "r.csv", "--user", "who", "--item", "film", "--catalogue", "films.csv", "--epsilon", 2)
    words = (*words, "--rating", "stars", "--range", "1,5", "--features")
    code, _, err = command(*words, "drama,genre")
    assert code == 2
    assert "Found text in 'genre'" in err
    code, _, err = command(*words, "drama", "--out", "films")
    assert code == 0, err
    model = tacitly.load(tmp_path / "films")
    with pytest.raises(DataError, match="none of the 1 ids is in the catalogue"):
        model.recommend_new({"flim 3": 5.0})
    with pytest.raises(DataError, match="items: 1 ids are missing"):
        tacitly.Recommender(epsilon=1.0, items=[*ids, None], rating_range=(1, 5)).fit(
            ratings["who"], ratings["film"], ratings["stars"]
        )


def test_empty_rows_and_columns_beside_a_table_are_none(command: Command, tmp_path: Path) -> None:
    """Excel writes them: a fit was refused, with advice that left out all rows with any missing cell as well."""
    table = tmp_path / "t.csv"
    rows().assign(a=lambda frame: frame["a"].where(frame.index % 7 > 0)).to_csv(table, index=False)
    table.write_text("".join(f"{line},,\n" for line in [*table.read_text().splitlines(), ",,,"]))
    code, out, err = command("fit", "t.csv", *FIT, "--no-compare")
    assert code == 0, err
    assert out.startswith("300 users, 5.0 rows each")
    code, _, err = command("budget", "create", "other.ledger", "--epsilon", 9, "--roster", "t.csv")
    assert "without a user" not in err
    table.write_text(table.read_text() + ",1.5,,3,,\n")
    code, _, err = command("fit", "t.csv", *FIT, "--out", "second")
    assert "1 row without a user" in err


def test_a_second_fit_on_a_ledger_is_told_how_it_gets_a_name() -> None:
    """Pages say to pass one ledger to every fit: the second said that a run was open, to finish or abandon it."""
    frame = rows(60)
    data = frame[["a"]], frame["y"], frame["who"]
    ledger = tacitly.Ledger()
    model = tacitly.MixedEffects(epsilon=1.0, ledger=ledger).fit(*data)
    with pytest.raises(RunInUse, match="a name of its own: run='second'"):
        tacitly.MixedEffects(epsilon=1.0, ledger=ledger).fit(*data)
    model.close()
    with pytest.raises(LedgerMismatch, match=r"is finished.*a name of its own: run='second'"):
        tacitly.MixedEffects(epsilon=1.0, ledger=ledger).fit(*data)
    tacitly.MixedEffects(epsilon=1.0, ledger=ledger, run="second").fit(*data)
    assert 1.4 < ledger.spent(delta=1e-6) < 1.5


def test_reports_and_choices_of_models_that_are_not_fitted_say_so_and_pages_are_not_printed() -> None:
    frame = rows(60)
    data = frame[["a"]], frame["y"], frame["who"]
    model = tacitly.MixedEffects(epsilon=1.0)
    for ask in (lambda: tacitly.report(model), lambda: tacitly.choose([model, model], *data, epsilon=1.0, bound=9.0)):
        with pytest.raises(NotFittedError, match="Call fit first"):
            ask()
    page = tacitly.report(model.fit(*data), rows=data)
    assert "<html" in page
    assert len(repr(page)) < 80


def test_numbers_with_marks_in_them_are_pointed_out(command: Command, tmp_path: Path) -> None:
    """Laboratory values below a limit of detection: a column of numbers became 16 groups of text, called prose."""
    frame = rows()
    frame["crp"] = np.where(frame.index % 5 == 0, "<0.5", (frame.index % 97 / 10 + 1).astype(str))
    frame.to_csv(tmp_path / "t.csv", index=False)
    code, out, err = command("fit", "t.csv", *FIT, "--no-compare")
    assert code == 0, err
    said = " ".join(out.split())
    assert "column 'crp' is text, though 80 % of its cells are numbers. To learn from the numbers, stop here" in said
    assert "column 'place'" not in said


def test_ids_that_a_spreadsheet_has_shortened_are_noted(command: Command, tmp_path: Path) -> None:
    """Excel drops zeros before ids: all predictions were the population's, and a deletion deleted nobody, quietly."""
    frame = rows()
    frame["who"] = frame["who"].map("{:05d}".format)
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.head(9).assign(who=lambda frame: frame["who"].astype(int)).to_csv(tmp_path / "new.csv", index=False)
    frame.head(9).to_csv(tmp_path / "known.csv", index=False)
    assert command("fit", "t.csv", *FIT, "--no-compare")[0] == 0
    code, out, err = command("predict", "model", "new.csv")
    assert code == 0
    assert out.count("population") == 9
    assert "no id in column 'who' has a personal model here" in " ".join(err.split())
    assert command("predict", "model", "known.csv")[2] == ""
    code, out, _ = command("forget", "3", "model")
    assert "Nothing was removed: no user in these folders has this id" in out
    assert "Remove the rows" not in out
    code, out, _ = command("forget", "00003", "model")
    assert "removed 1 of 300 heads" in out
    assert "Nothing was removed" not in out


def test_labels_in_other_letters_are_told_apart(command: Command, tmp_path: Path) -> None:
    rows().assign(y=np.where(rows()["y"] > 10, "Ja", "Nein")).to_csv(tmp_path / "t.csv", index=False)
    code, _, err = command("fit", "t.csv", *FIT, "--loss", "logistic", "--classes", "ja,nein")
    assert code == 2
    assert "does not declare (capital letters count)" in " ".join(err.split())


def test_an_account_that_knows_no_ids_does_not_say_that_it_has_no_people(command: Command, tmp_path: Path) -> None:
    """A coordinator's account of 900 patients at three sites said: 0 people."""
    with tacitly.Ledger(tmp_path / "hub.ledger") as account:
        account.run("model", config={}, planned=[]).finish()
    for ask in (("show", "hub.ledger"), ("list",)):
        code, out, err = command("budget", *ask)
        assert code == 0, err
        assert "people whose ids it does not know" in " ".join(out.split())


def test_what_models_do_not_read_is_named() -> None:
    """A sparse matrix had 0 dimensions, and a row of a service had cells that are no numbers."""
    frame = rows(60)
    sparse = scipy.sparse.random(len(frame), 9, density=0.2, format="csr", random_state=0)
    for matrix in (sparse, sparse.todok()):
        with pytest.raises(DataError, match=r"X is a sparse matrix.*X\.toarray\(\)"):
            tacitly.MixedEffects(epsilon=1.0).fit(matrix, frame["y"], frame["who"])
    model = tacitly.MixedEffects(epsilon=4.0).fit(frame[["a", "place"]], frame["y"], frame["who"])
    row = {"a": 1.0, "place": "North"}
    for found in (row, [row], {"a": [1.0], "place": ["North"]}):
        with pytest.raises(DataError, match=r"Found a mapping: pandas.DataFrame"):
            model.predict(found)


def test_what_is_odd_can_be_seen_before_a_fit_of_seconds_is_over(command: Command, tmp_path: Path) -> None:
    """Notes said to stop here, and the fit was paid for before anybody had read them."""
    rows().assign(kilo=60.0).to_csv(tmp_path / "t.csv", index=False)
    code, out, err = command("fit", "t.csv", *FIT, "--ledger", "l.ledger", "--dry-run")
    assert code == 0, err
    assert "column 'kilo' has the same value in every row" in " ".join(out.split())
    assert out.endswith("nothing was spent or written: this was a dry run\n")
    assert not (tmp_path / "model").exists()
    assert not (tmp_path / "l.ledger").exists()


def test_tables_of_a_school_are_read_with_a_word_about_what_is_odd(command: Command, tmp_path: Path) -> None:
    """Totals became users, ids in other letters other people, a column without a name vanished: without a word."""
    frame = rows().assign(who=lambda frame: frame["who"].map("P{:03d}".format), more=1.5)
    frame["more"] += np.arange(len(frame)) % 7
    frame.loc[3, "who"] = "p000"
    frame.rename(columns={"more": ""}).to_csv(tmp_path / "t.csv", index=False)
    with (tmp_path / "t.csv").open("a") as file:
        file.write("Sum,,,123.5,\nMean,,,1.5,\n")
    code, out, err = command("fit", "t.csv", *FIT, "--dry-run")
    assert code == 0, err
    said = " ".join(out.split())
    assert "2 rows with y and no feature. If they are totals below the table, stop here and delete them" in said
    assert "some ids in column 'who' differ only in capital letters, spaces or zeros in front" in said
    assert "left out: 1 column without a name in the header" in " ".join(err.split())
    rows().to_csv(tmp_path / "plain.csv", index=False)
    code, out, err = command("fit", "plain.csv", *FIT, "--dry-run")
    assert (code, err, "note" in out) == (0, "", False)


def test_a_head_of_another_fit_is_refused_and_a_missing_target_named(command: Command, tmp_path: Path) -> None:
    """Two fits on one table have heads of one shape: the other's head was used, and all predictions were wrong."""
    rows().to_csv(tmp_path / "t.csv", index=False)
    rows().head(5).to_csv(tmp_path / "mine.csv", index=False)
    for name in ("one", "two"):
        assert command("fit", "t.csv", *FIT, "--no-compare", "--out", name)[0] == 0
    assert command("publish", "one", "public")[0] == 0
    assert command("personalize", "public", "mine.csv")[0] == 0
    assert command("predict", "one", "mine.csv", "--head", "head.json")[0] == 0
    code, _, err = command("predict", "two", "mine.csv", "--head", "head.json")
    assert code == 2
    assert "head.json was fitted for another model. Fit it again: tacitly personalize" in " ".join(err.split())
    rows().head(5).drop(columns="y").to_csv(tmp_path / "bare.csv", index=False)
    code, _, err = command("personalize", "one", "bare.csv", "--out", "other.json")
    assert (code, "has no target column 'y'" in err) == (2, True)


def test_a_full_disk_leaves_no_part_of_a_file_and_nothing_is_paid_for_twice(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It said "[Errno 28]", did not say that the budget of the fit is not lost, and left an empty file in the way."""
    rows().to_csv(tmp_path / "t.csv", index=False)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(model_folder, "config_of", full)
        code, _, err = command("fit", "t.csv", *FIT, "--no-compare", "--ledger", "l.ledger")
    assert (code, "the disk is full. Make room and run the same command again; nothing is spent" in err) == (2, True)
    assert not (tmp_path / "model").exists()
    assert command("fit", "t.csv", *FIT, "--no-compare", "--ledger", "l.ledger")[0] == 0
    assert "spent ε = 4.00" in command("budget", "show", "l.ledger")[1]
    with monkeypatch.context() as patch:
        patch.setattr(model_folder.Path, "write_text", full)
        assert command("publish", "model", "public")[0] == 2
    assert not (tmp_path / "public").exists()
    with pytest.raises(TypeError):
        write_private(tmp_path / "p.csv", "text")  # type: ignore[arg-type]
    assert not (tmp_path / "p.csv").exists()


def test_parts_of_a_frame_in_different_orders_are_refused() -> None:
    """Rows are paired by position: a sorted target gave a model of nothing, without a word."""
    frame = rows(60)
    model = tacitly.MixedEffects(epsilon=1.0)
    with pytest.raises(DataError, match=r"the same row labels .* in different orders"):
        model.fit(frame[["a"]], frame["y"].sort_values(), frame["who"])
    model.fit(frame[["a"]], frame["y"].set_axis(frame.index + 7), frame["who"])


def test_a_regulator_is_told_what_a_check_cannot_show(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mistyped file of a key read as a forged signature; nothing said that any key makes a certificate valid."""
    rows().to_csv(tmp_path / "t.csv", index=False)
    assert command("fit", "t.csv", *FIT, "--no-compare")[0] == 0
    assert command("publish", "model", "public")[0] == 0
    assert "not compared with a key" not in command("verify", "model")[1]
    monkeypatch.setenv("TACITLY_HOME", str(tmp_path / "elsewhere"))
    code, out, _ = command("verify", "public")
    assert (code, "not compared with a key: whoever rewrites a certificate can sign it" in out) == (0, True)
    for words, said in (
        (("verify", "public", "--key", "nokey"), "--key must be a public key of 64 hexadecimal digits"),
        (("verify", "public", "--delta", 2), "delta must lie strictly between 0 and 1"),
        (("verify", "public/certificate.json"), "Expected the folder that contains it"),
        (("budget", "show", "public"), "this machine does not know the account of public. Give the ledger file"),
    ):
        code, out, err = command(*words)
        assert (code, out) == (2, "")
        assert said in " ".join(err.split())
