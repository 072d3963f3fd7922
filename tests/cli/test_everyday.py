"""Usability tests: what a new user tripped over with tables as people have them, written down, and mended."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import tacitly
from tacitly.baselines.comparison import LOCAL, MEANS, OURS, SINGLE, TWIN, Line, compare, verdict
from tacitly.cli.console import wrapped
from tacitly.cli.main import main
from tacitly.data.csv_format import CsvFormat
from tacitly.data.tables import open_table
from tacitly.privacy.guarantee import TooFewUsersWarning, UncertifiedWarning

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["tacitly", *map(str, words)])
        with pytest.raises(SystemExit) as stop:
            main()
        captured = capsys.readouterr()
        return int(stop.value.code or 0), captured.out, captured.err

    return run


def patients(users: int = 300, seed: int = 0) -> pd.DataFrame:
    """Rows as people have them: text with umlauts, yes/no, missing cells, a row number."""
    rng = np.random.default_rng(seed)
    who = np.repeat(np.arange(users), rng.integers(2, 7, users))
    n = len(who)
    age, dose = rng.integers(20, 80, n), rng.normal(5.0, 2.0, n).round(2)
    clinic, smoker = rng.choice(["Köln", "Zürich", "Genf"], n), rng.random(n) < 0.3
    score = rng.normal(0, 2, users)[who] + 0.05 * age + 0.8 * dose + 1.5 * smoker + rng.normal(0, 0.5, n)
    frame = pd.DataFrame(
        {
            "row": np.arange(n) + 1,
            "patient": [f"p{i:03d}" for i in who],
            "age": np.where(rng.random(n) < 0.05, np.nan, age),
            "dose": dose,
            "clinic": np.where(rng.random(n) < 0.05, "", clinic),
            "smoker": np.where(smoker, "yes", "no"),
            "score": score.round(3),
        }
    )
    return frame


FIT = ("--user", "patient", "--target", "score", "--epsilon", 4)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("everyday")
    patients().to_csv(folder / "visits.csv", index=False)
    words = ["fit", "visits.csv", *map(str, FIT), "--exclude", "row", "--range", "age=0:120"]
    done = subprocess.run(
        [sys.executable, "-m", "tacitly", *words],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "COLUMNS": "80"},
    )
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def table_of(text: str) -> pd.DataFrame:
    return pd.read_csv(io.StringIO(text), dtype={"patient": str})


def test_the_first_command_needs_no_rank_and_ends_with_what_was_learned(fitted: tuple[Path, str]) -> None:
    _, out = fitted
    said = " ".join(out.split())
    for words in (
        "ε = 4.00 (zero-out)",
        "numbers with a declared range: age (0 to 120)",
        "yes or no: smoker",
        "text, frequent levels found privately (--levels NAME=A,B saves budget): clinic",
        "missing cells are replaced by the population's mean",
        "users' own means",
        "Sharing helped: the error is",
        "mixed effects of 300 users",
        "users vary by",
    ):
        assert words in said, words
    assert "p001" not in out
    assert all(len(line) <= 80 for line in out.splitlines() if not line.startswith("ledger: /"))


def test_the_schema_is_stored_and_applied_at_predict_with_columns_in_any_order(
    fitted: tuple[Path, str], command: Command, tmp_path: Path
) -> None:
    folder, _ = fitted
    frame = patients()
    frame[frame.columns[::-1]].to_csv(tmp_path / "new.csv", index=False, sep=";", encoding="latin-1")
    code, out, err = command("predict", folder / "model", "new.csv", "--std")
    assert code == 0, err
    assert "semicolons between cells, Windows-1252 (latin-1) text" in err
    predicted = table_of(out)
    assert list(predicted.columns) == ["patient", "prediction", "std", "model"]
    assert np.corrcoef(predicted["prediction"], frame["score"])[0, 1] > 0.9
    assert (predicted["std"] > 0).all()


def test_unseen_users_get_the_populations_prediction_marked(
    fitted: tuple[Path, str], command: Command, tmp_path: Path
) -> None:
    folder, _ = fitted
    frame = patients().head(3).assign(patient=["p000", "somebody", "p001"])
    frame.to_csv(tmp_path / "new.csv", index=False)
    code, out, _ = command("predict", folder / "model", "new.csv")
    assert code == 0
    assert table_of(out)["model"].tolist() == ["personal", "population", "personal"]
    frame.drop(columns="patient").to_csv(tmp_path / "nobody.csv", index=False)
    code, out, _ = command("predict", folder / "model", "nobody.csv")
    assert code == 0
    assert set(table_of(out)["model"]) == {"population"}


def test_one_unseen_user_does_not_stop_a_prediction_where_there_is_no_population(
    command: Command, tmp_path: Path
) -> None:
    data = tacitly.datasets.make_shared_subspace(200, 3, 1, 6, noise=0.1, random_state=0)
    frame = pd.DataFrame(data.X, columns=list("abc")).assign(who=data.users, y=data.y)
    model = tacitly.PrivateFedRep(rank=1, epsilon=8.0).fit(frame[list("abc")], data.y, data.users)
    model.user_column_ = "who"
    tacitly.save(model, "model")
    frame.head(7).assign(who=[0, 0, 0, 0, 0, 0, 999]).to_csv("new.csv", index=False)
    code, out, err = command("predict", "model", "new.csv")
    assert code == 0
    made = pd.read_csv(io.StringIO(out))["model"].tolist()
    assert made[:6] == ["personal"] * 6
    assert made[6] in ("none", "population")
    assert "personalize(" not in err  # Python's advice, in a command


def test_personalize_refuses_to_merge_users_and_takes_one_by_its_id(
    fitted: tuple[Path, str], command: Command, tmp_path: Path
) -> None:
    folder, _ = fitted
    patients().head(12).to_csv(tmp_path / "mine.csv", index=False)
    code, _, err = command("personalize", folder / "model", "mine.csv")
    assert code == 2
    assert "but a head is for one user. Choose with --id." in err
    code, out, err = command("personalize", folder / "model", "mine.csv", "--id", "p000", "--out", "head.json")
    assert code == 0, err
    code, out, _ = command("predict", folder / "model", "mine.csv", "--head", "head.json", "--std")
    assert code == 0
    assert table_of(out).columns.tolist() == ["prediction", "std", "model"]
    code, full, _ = command("predict", folder / "model", "mine.csv", "--std")
    own = table_of(full)["patient"] == "p000"
    np.testing.assert_allclose(table_of(out)["prediction"][own], table_of(full)["prediction"][own], rtol=1e-4)
    (tmp_path / "other.json").write_text('{"weights": [1.0], "intercept": 0.0}')
    code, _, err = command("predict", folder / "model", "mine.csv", "--head", "other.json")
    assert (code, "is not a head written by 'tacitly personalize'" in err) == (2, True)


def test_the_published_model_still_predicts_and_verifies(
    fitted: tuple[Path, str], command: Command, tmp_path: Path
) -> None:
    folder, _ = fitted
    patients().head(4).to_csv(tmp_path / "new.csv", index=False)
    assert command("verify", folder / "model")[0] == 0
    assert command("publish", folder / "model", "public")[0] == 0
    code, out, _ = command("predict", "public", "new.csv")
    assert (code, set(table_of(out)["model"])) == (0, {"population"})
    assert "p000" not in (tmp_path / "public" / "config.json").read_text()


WRITERS: dict[str, Callable[[pd.DataFrame, str], None]] = {
    "rows.csv": lambda frame, path: frame.to_csv(path),  # with the row number that pandas and R save without a name
    "rows.tsv": lambda frame, path: frame.to_csv(path, index=False, sep="\t"),
    "rows.txt": lambda frame, path: frame.to_csv(path, index=False, sep="|", encoding="utf-8-sig"),
    "german.csv": lambda frame, path: frame.to_csv(path, index=False, sep=";", decimal=",", encoding="latin-1"),
    "rows.csv.gz": lambda frame, path: frame.to_csv(path, index=False),
    "wide.csv": lambda frame, path: frame.to_csv(path, index=False, encoding="utf-16"),
    "rows.parquet": lambda frame, path: frame.to_parquet(path),
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_usual_way_of_saving_a_table_gives_the_same_rows(name: str, tmp_path: Path) -> None:
    from tacitly.cli.reading import Columns, read_cohort

    frame, path = patients(40), tmp_path / name
    WRITERS[name](frame, str(path))
    columns = Columns("patient", "score", exclude=("row",))
    cohort = read_cohort(open_table(path, "patient"), columns, {}, drop_missing=False, folder=None)
    expected = tacitly.Cohort.from_table(
        frame.drop(columns="row"), user="patient", target="score", schema={"smoker": {"kind": "boolean"}}
    )
    assert cohort.feature_names == expected.feature_names
    np.testing.assert_allclose(cohort.X, expected.X)
    np.testing.assert_allclose(np.asarray(cohort.y), np.asarray(expected.y))


def test_numbers_that_could_be_thousands_are_asked_about(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("who;x\na;1,234\nb;2,500\n")
    with pytest.raises(ValueError, match=r"thousands or decimals\?"):
        open_table(path)
    for decimal, value in ((",", 1.234), (".", 1234.0)):
        (cells,) = next(open_table(path, csv=CsvFormat(decimal=decimal)).batches(["x"], 10))
        assert cells[0] == value


def test_rows_without_a_target_are_left_out_with_a_sentence_and_all_incomplete_ones_on_request(tmp_path: Path) -> None:
    from tacitly.cli.reading import Columns, read_cohort

    frame = patients(40)
    frame.loc[:4, "score"] = np.nan
    frame.to_csv(tmp_path / "t.csv", index=False)
    source, columns = open_table(tmp_path / "t.csv", "patient"), Columns("patient", "score")
    kept = read_cohort(source, columns, {}, drop_missing=False, folder=None)
    assert kept.n_rows == len(frame) - 5
    whole = read_cohort(source, columns, {}, drop_missing=True, folder=None)
    assert whole.n_rows == int((frame.notna().all(axis=1) & (frame["clinic"] != "")).sum())
    assert np.isfinite(whole.X).all()


@pytest.mark.parametrize(
    ("spoil", "words", "message"),
    [
        (lambda f: f.assign(day="2024-05-01"), (), "Columns hold dates: 'day'. Turn each into a number"),
        (lambda f: f.assign(age=f["age"].astype(object).where(f.index != 3, "old")), (), "'age' (1 row)"),
        (lambda f: f, ("--target", "smoker"), "If these are classes: --loss logistic --classes no,yes (all labels"),
        (lambda f: f, ("--method", "fedrep", "--rank", 1), "takes text and missing cells as they are"),
        (lambda f: f, ("--exclude", "agee"), "Did you mean 'age'?"),
        (lambda f: f, ("--range", "age"), "--range must be NAME=LOW:HIGH"),
        (lambda f: f, ("--range", "age=9:1"), "two numbers, the lower first"),
        (lambda f: f, ("--range", "aeg=0:1"), "does not have: 'aeg'"),
        (lambda f: f, ("--levels", "clinic=Genf"), "--levels must be NAME=FIRST,SECOND"),
        (lambda f: f, ("--levels", "clnic=a,b"), "does not have: 'clnic'"),
        (lambda f: f, ("--adjacency", "foo"), "--adjacency must be zero-out or replace-one. Found 'foo'."),
        (lambda f: f, ("--separator", "ab"), "separator must be one character"),
        (lambda f: f, ("--method", "fedrep", "--rank", 1, "--range", "age=0:1"), "--range is for --method mixed-eff"),
        (lambda f: f, ("--out", "t.csv"), "t.csv exists already. Choose another --out"),
        (lambda f: f, ("--out", "t.csv", "--target", "scroe"), "Did you mean 'score'?"),
        (lambda f: f, ("--out", "t.csv", "--exclude", "agee"), "Did you mean 'age'?"),
    ],
)
def test_refusals_are_one_sentence_with_a_remedy_and_spend_nothing(  # type: ignore[no-untyped-def]
    command, tmp_path, spoil, words, message
) -> None:
    spoil(patients(40)).to_csv(tmp_path / "t.csv", index=False)
    code, _, err = command("fit", "t.csv", *FIT, *words)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


def test_columns_that_look_like_ids_are_pointed_out_and_used(command: Command, tmp_path: Path) -> None:
    from tacitly.data.selection import id_like

    frame = patients(40).assign(email=lambda f: f["patient"] + "@x.org", weight=lambda f: f["dose"] * 1.37)
    frame = frame.assign(school_id=frame["row"] % 30, paid=frame["row"] % 2)
    frame["job_code"] = (frame["row"] % 12).where(frame["row"] % 3 > 0)  # twelve values, and many missing cells
    assert id_like(open_table(frame), "patient", [name for name in frame if name != "patient"]) == {
        "row": "is different in every row",
        "email": "has a value of its own for every user",
        "school_id": "has the name and the many values of an id",
    }
    frame.to_csv(tmp_path / "t.csv", index=False)
    code, out, _ = command("fit", "t.csv", *FIT, "--no-compare", "--out", "new/folder/m")  # made where it is missing
    assert code == 0
    note = "note: column 'row' is different in every row. If it is an id or prose, stop here and add --exclude row."
    assert note in " ".join(out.split())
    features = json.loads((tmp_path / "new/folder/m/config.json").read_text())["features"]
    assert "row" in features  # pointing it out changes nothing


def test_a_folder_that_was_removed_does_not_lead_to_a_dead_end(command: Command, tmp_path: Path) -> None:
    patients(60).to_csv(tmp_path / "visits.csv", index=False)
    assert command("fit", "visits.csv", *FIT, "--no-compare")[0] == 0
    shutil.rmtree(tmp_path / "model")
    code, out, _ = command("fit", "visits.csv", *FIT, "--no-compare")
    assert code == 0
    assert "these users have spent ε = " in out


def test_every_user_with_one_row_is_no_reason_to_fail_after_spending(command: Command, tmp_path: Path) -> None:
    frame = patients(300).drop_duplicates("patient").drop(columns=["row", "clinic"])
    frame.to_csv(tmp_path / "t.csv", index=False)
    code, out, err = command("fit", "t.csv", *FIT)
    assert code == 0, err
    assert "no comparison: it holds out rows of users who have two or more, and no user has." in out


def test_labels_may_be_words_and_probabilities_can_be_had(command: Command, tmp_path: Path) -> None:
    frame = patients(200)[["patient", "age", "dose", "smoker"]].assign(age=lambda f: f["age"].fillna(50) / 100)
    frame.to_csv(tmp_path / "t.csv", index=False)
    words = (
        "--user",
        "patient",
        "--target",
        "smoker",
        "--epsilon",
        4,
        "--method",
        "fedrep",
        "--rank",
        1,
        "--intercept",
    )
    code, _, err = command("fit", "t.csv", *words, "--loss", "logistic", "--classes", "no,yes", "--no-compare")
    assert code == 0, err
    code, out, _ = command("predict", "model", "t.csv", "--proba")
    assert code == 0
    predicted = table_of(out)
    assert set(predicted["prediction"]) <= {"no", "yes"}
    np.testing.assert_allclose(predicted["P(no)"] + predicted["P(yes)"], 1.0)
    frame.head(2).to_csv(tmp_path / "mine.csv", index=False)
    assert command("personalize", "model", "mine.csv", "--id", frame["patient"][0])[0] == 0
    code, _, err = command("fit", "t.csv", *words, "--loss", "logistic", "--classes", "no,maybe", "--out", "m2")
    assert code == 2
    assert "with a label that --classes does not declare" in err
    code, _, err = command("predict", "model", "t.csv", "--std")
    assert (code, "--std is for numbers and counts" in err) == (2, True)


def test_help_shows_no_backslashes_and_says_what_arguments_are(command: Command) -> None:
    for name in ("fit", "predict", "personalize", "svd", "trace", "verify", "audit", "recommend", "publish", "serve"):
        code, out, _ = command(name, "--help")
        assert code == 0
        assert "\\[" not in out
        assert out.count("Arguments:") == 1
        assert "Positional arguments" not in out
    assert "Column with the user id.  [required]" in command("fit", "--help")[1]
    assert "TABLE  CSV, TSV (also .gz), Parquet or Arrow file" in command("fit", "--help")[1]


def test_the_list_of_commands_ends_no_sentence_with_dots(command: Command) -> None:
    for words in (("--help",), ("budget", "--help")):
        code, out, _ = command(*words)
        assert code == 0
        assert "..." not in out.partition("Commands:")[2]


def test_a_mistyped_command_is_answered_once(command: Command) -> None:
    code, _, err = command("fti", "rows.csv")
    assert code == 2
    assert err.count("Did you mean 'fit'?") == 1


def test_there_is_a_version(command: Command) -> None:
    code, out, _ = command("--version")
    assert (code, out.startswith("tacitly 0.")) == (0, True)


def test_a_certificate_is_short_unless_asked_and_never_breaks_a_word(
    fitted: tuple[Path, str], command: Command
) -> None:
    folder, out = fitted
    assert "not covered: heads" not in out
    code, full, _ = command("verify", folder / "model", "--full")
    assert code == 0
    text = full[: full.index("ok ")]
    assert "not covered: heads, and predictions made with them, that are shown to others" in " ".join(text.split())
    assert all(len(line) <= 80 for line in text.splitlines())
    words = "differential-privacy " * 9
    assert set(wrapped(words).split()) == {"differential-privacy"}


def test_warnings_show_no_path_of_the_source(tmp_path: Path) -> None:
    patients(60).drop(columns=["row", "clinic"]).to_csv(tmp_path / "t.csv", index=False)
    words = ["fit", "t.csv", "--user", "patient", "--target", "score", "--epsilon", "inf"]
    done = subprocess.run([sys.executable, "-m", "tacitly", *words], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0
    assert "tacitly: not certified" in done.stderr
    assert ".py:" not in done.stderr
    assert "keep it to yourself" in done.stdout  # publish would refuse it


def test_a_compilation_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    from tacitly.cli.console import compiling_is_said
    from tacitly.simd.lazy_njit import njit

    with compiling_is_said():
        njit(cache=False)(lambda x: x + 1)(1)
        njit(cache=False)(lambda x: x + 2)(1)
    njit(cache=False)(lambda x: x + 3)(1)
    assert capsys.readouterr().err.count("compiling") == 1


def test_waiting_for_compilations_does_not_import_the_compiler() -> None:
    """Importing Numba was a twelfth of the processor time of a fit that compiles nothing."""
    program = (
        "import sys; from tacitly.cli.console import compiling_is_said as said\n"
        "with said(): print('numba' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]


def test_the_rows_of_a_comparison_are_right_whatever_the_units() -> None:
    """Local models had R² −1.07 where a ridge per user has 0.72, and a column in other units changed everything."""
    rng = np.random.default_rng(0)
    users = np.repeat(np.arange(300), 8)
    X = rng.normal(size=(2400, 2))
    slopes = rng.normal(1.0, 0.5, size=(300, 2))
    y = 50.0 + rng.normal(0, 2, 300)[users] + np.einsum("ij,ij->i", X, slopes[users]) + 0.3 * rng.normal(size=2400)
    tables = {}
    for name, rows in {"plain": X, "units": X * [1e3, 1e-3] + [1e3, 0.0]}.items():
        cohort = tacitly.Cohort.from_arrays(rows, y, users, schema={})
        model = tacitly.MixedEffects(epsilon=8.0).fit(cohort)
        tables[name] = {line.method: line for line in compare(model, cohort)}
    for method in (MEANS, LOCAL, SINGLE):
        assert tables["plain"][method].error == pytest.approx(tables["units"][method].error, rel=1e-6)
    score = {method: line.score for method, line in tables["plain"].items()}
    assert score[LOCAL] > 0.9
    assert score[TWIN] > 0.9
    assert score[OURS] > 0.9
    assert score[SINGLE] < score[MEANS] < score[LOCAL]


def test_local_models_of_counts_are_not_absurd_and_no_difference_is_said_as_such() -> None:
    """A Poisson regression on three rows predicted billions, and sharing seemed to help by 100 %."""
    rng = np.random.default_rng(0)
    users = np.repeat(np.arange(150), 4)
    X, y = rng.normal(size=(600, 2)), rng.poisson(np.exp(1.0 + 0.4 * rng.normal(size=150)[users])).astype(float)
    cohort = tacitly.Cohort.from_arrays(X, y, users)
    with pytest.warns(tacitly.UncertifiedWarning):
        model = tacitly.MixedEffects(np.inf, loss="poisson").fit(cohort)
    error = {line.method: line.error for line in compare(model, cohort)}
    assert error[LOCAL] <= error[MEANS]
    lines = [Line(name, "", value, 0.0) for name, value in ((MEANS, 2.0), (LOCAL, 2.1), (SINGLE, 3.0), (TWIN, 1.9))]
    assert verdict([*lines, Line(OURS, "", 1.999, 0.0)]).startswith("Sharing made no difference")


def test_levels_of_a_text_column_are_declared_on_the_command_line(tmp_path: Path) -> None:
    """It took a JSON file to read "male" instead of "female#3"."""
    from tacitly.cli.reading import Columns, declared, read_cohort

    patients(40).to_csv(tmp_path / "t.csv", index=False)
    columns = Columns("patient", "score", exclude=("row", "age", "dose", "smoker"))
    schema = declared(None, None, ["clinic=Genf, Köln,Zürich"])
    cohort = read_cohort(open_table(tmp_path / "t.csv", "patient"), columns, schema, drop_missing=False, folder=None)
    assert cohort.feature_names == ("clinic=Köln", "clinic=Zürich")


def test_names_of_features_are_checked_at_predict_by_every_estimator() -> None:
    """A frame with columns reversed and one renamed gave R² −1.53 for 0.993, and no error."""
    data = tacitly.datasets.make_shared_subspace(60, 3, 1, 6, noise=0.1, random_state=0)
    frame = pd.DataFrame(data.X, columns=["a", "b", "c"])
    models = [tacitly.PrivateFedRep(1, 8.0), tacitly.MixedEffects(8.0), tacitly.LocalModels(), tacitly.SingleModel()]
    for model in models:
        model.fit(frame, data.y, data.users)
        right = model.predict(frame, data.users)
        np.testing.assert_array_equal(model.predict(frame[["c", "a", "b"]], data.users), right)
        with pytest.raises(
            ValueError, match=r"feature names should match .* now missing: 'b'\. Unseen at fit time: 'B'"
        ):
            model.predict(frame[["c", "b", "a"]].rename(columns={"b": "B"}), data.users)


def test_predictions_of_awkward_ids_are_a_csv_again(command: Command, fitted: tuple[Path, str], tmp_path: Path) -> None:
    folder, _ = fitted
    frame = patients().head(2).assign(patient=['a "b", c', "p000"])
    frame.to_csv(tmp_path / "new.csv", index=False)
    code, out, _ = command("predict", folder / "model", "new.csv")
    assert code == 0
    assert [row[0] for row in csv.reader(io.StringIO(out))][1:] == ['a "b", c', "p000"]


def test_a_torn_compressed_file_is_refused_without_a_traceback(command: Command, tmp_path: Path) -> None:
    whole = gzip.compress(patients(40).to_csv(index=False).encode())
    (tmp_path / "t.csv.gz").write_bytes(whole[: len(whole) // 2])
    code, _, err = command("fit", "t.csv.gz", *FIT)
    assert code == 2
    assert "could not be read as CSV" in err


def test_a_missing_extra_is_one_sentence_that_says_what_to_install(tmp_path: Path) -> None:
    """``--engine ray``, ``serve`` and ``join`` ended in tracebacks."""
    patients(40)[["patient", "age", "dose", "score"]].dropna().to_csv(tmp_path / "t.csv", index=False)
    program = """
import sys
sys.modules |= {"ray": None, "flwr": None, "cryptography": None}
from tacitly.cli.main import main
for words in sys.argv[1:]:
    sys.argv = ["tacitly", *words.split()]
    try:
        main()
    except SystemExit as stop:
        print(stop.code)
"""
    commands = [
        f"fit t.csv {' '.join(map(str, FIT))} --engine ray --no-compare",
        "join north --table t.csv --user patient --target score",
        "serve hub --node north/card.json --epsilon 1",
    ]
    done = subprocess.run([sys.executable, "-c", program, *commands], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.split()[-3:] == ["2", "2", "2"], done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("tacitly: ")]
    assert "Traceback" not in done.stderr
    assert said[0] == "tacitly: the engine 'ray' needs Ray: pip install 'tacitly[ray]'."
    assert all(line.endswith("pip install 'tacitly[flower]'.") for line in said[1:]), said
    assert len(said) == 3


def test_the_audit_of_a_model_without_noise_shows_the_attacker_winning_and_fails(
    command: Command, tmp_path: Path
) -> None:
    """It said that at least 0.00 is proved, that a guess is right half of the time, and exited with 0."""
    about = {"class": "PrivateAltMin", "parameters": {"rank": 1, "epsilon": "inf", "rounds": 1}}
    (tmp_path / "model.json").write_text(json.dumps(about))
    code, out, _ = command("audit", "model.json", "--runs", 20, "--fresh", "--workers", 1)
    said = " ".join(out.split())
    assert code == 1
    assert "not certified, ε = ∞: sums are released without noise" in said
    assert "right 100.0% of the time, up to a sampling error of" in said
    assert "BROKEN: there is no noise, so nothing is promised" in said
    assert "its paper" not in said
    assert "the claim allows" not in said


def test_an_account_takes_a_number_and_what_people_type_first_is_there() -> None:
    """``Ledger(ceiling=1.0)`` failed with "asdict() should be called on dataclass instances"."""
    assert tacitly.Ledger(ceiling=1.0).ceiling == tacitly.Budget(epsilon=1.0, delta=1e-6)
    for name in ("audit", "datasets", "neural", "Predictor", "WithinUsers", "choose"):
        assert hasattr(tacitly, name)


def test_verify_ends_with_the_answer(command: Command, fitted: tuple[Path, str], tmp_path: Path) -> None:
    folder, _ = fitted
    code, out, _ = command("verify", folder / "model")
    answer = " ".join(out.split("\n", out.count("ok    "))[-1].split())
    assert code == 0
    assert answer.startswith(f"verified: all {out.count('ok    ')} checks passed. MixedEffects: ε = ")
    shutil.copytree(folder / "model", tmp_path / "changed")
    config = tmp_path / "changed" / "config.json"
    config.write_text(config.read_text(encoding="utf-8") + " ", encoding="utf-8")
    code, out, _ = command("verify", tmp_path / "changed")
    assert code == 1
    assert out.splitlines()[-1].startswith("NOT VERIFIED: 1 of ")
    assert out.splitlines()[-1].endswith("checks failed: files")


def test_commands_that_fit_and_predict_nothing_start_without_scikit_learn() -> None:
    code = "import sys, tacitly.deployment.forget, tacitly.model_folder; print('sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_an_account_without_a_ceiling_shows_what_each_run_has_spent(command: Command, fitted: tuple[Path, str]) -> None:
    _, said = fitted
    ledger = next(line.partition(": ")[2] for line in said.splitlines() if line.startswith("ledger: "))
    code, out, _ = command("budget", ledger)
    assert code == 0
    run = next(line for line in out.splitlines() if "finished" in line)
    assert float(run.split("│")[-2]) > 0


@pytest.mark.parametrize("words", [("ja", "nein"), ("oui", "non"), ("Sí", "No"), ("JA", "NEE")])
def test_yes_and_no_are_known_in_other_languages(words: tuple[str, str], tmp_path: Path) -> None:
    frame = pd.DataFrame({"u": [1, 1, 2], "help": [words[0], words[1], ""], "y": [1.0, 2.0, 3.0]})
    frame.to_csv(tmp_path / "t.csv", index=False)
    cohort = tacitly.Cohort.from_table(open_table(tmp_path / "t.csv", "u"), user="u", target="y", schema={})
    np.testing.assert_array_equal(cohort.X[:, 0], [1.0, 0.0, np.nan])


def test_a_folder_before_the_id_is_told_the_order(command: Command, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    code, _, err = command("forget", "model", "p001")
    assert code == 2
    assert err == "tacitly: the user's id must come first, then folders: tacitly forget p001 model\n"


def test_wrong_arguments_in_python_are_answered_in_words() -> None:
    X, y, users, *_ = tacitly.datasets.make_shared_subspace(30, 3, 1, 4, random_state=0)
    with pytest.raises(TypeError, match=r"epsilon must be a number. Found '1'."):
        tacitly.MixedEffects(epsilon="1").fit(X, y, users)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"adjacency must be 'zero-out' or 'replace-one'. Found 'add-remove'."):
        tacitly.MixedEffects(epsilon=1.0, adjacency="add-remove").fit(X, y, users)
    with pytest.raises(tacitly.DataError, match=r"Expected counts: numbers that are not negative."):
        tacitly.MixedEffects(epsilon=1.0, loss="poisson").fit(X, -np.abs(y), users)
    with pytest.raises(AttributeError, match=r"Did you mean 'MixedEffects'\?"):
        _ = tacitly.MixedEffect
    with pytest.raises(tacitly.DataError, match=r"leave it out\.$"):
        tacitly.MixedEffects(epsilon=1.0).fit(pd.DataFrame(X).assign(day="2024-01-03"), y, users)


def test_few_users_are_told_what_their_estimates_are_worth() -> None:
    rng = np.random.default_rng(0)
    X, users = rng.normal(size=(1000, 6)), np.repeat(np.arange(200), 5)
    y = 3.0 * X[:, 0] + rng.normal(0.0, 3.0, 200)[users] + rng.normal(size=1000)
    with pytest.warns(UncertifiedWarning):
        model = tacitly.MixedEffects(epsilon=1.0, noise="float", noise_seed=0).fit(X, y, users)
    assert model.helps_
    assert "few users for 6 coefficients: about " in str(model.summary())
    with pytest.warns(UncertifiedWarning):
        assert "few users" not in str(tacitly.MixedEffects(epsilon=np.inf).fit(X, y, users).summary())
    assert "6 features" in repr(model.personalize(X[:5], y[:5]))


def test_codes_of_missing_values_are_declared_once_and_known_at_predict(command: Command, tmp_path: Path) -> None:
    frame = patients(60)[["patient", "dose", "score"]].astype(object)
    frame.loc[frame.index % 20 == 0, "dose"] = "refused"
    frame.loc[3, "score"] = -9
    frame.to_csv(tmp_path / "codes.csv", index=False)
    asked = ("fit", "codes.csv", "--user", "patient", "--target", "score", "--epsilon", "4", "--no-compare")
    code, _, error = command(*asked)
    assert (code, "--missing" in error) == (2, True)
    code, out, error = command(*asked, "--missing", "refused", "--missing", "score=-9")
    assert code == 0, error
    assert "left out: 1 row with a missing score" in out
    code, out, error = command("predict", "model", "codes.csv")
    assert code == 0, error
    assert len(out.splitlines()) == len(frame) + 1


def _lines(means: float, local: float, single: float, twin: float, ours: float, **scores: float) -> list[Line]:
    errors = {MEANS: means, LOCAL: local, SINGLE: single, TWIN: twin, OURS: ours}
    return [Line(name, "", error, scores.get(name.split()[0].strip("'s"), 0.0), 0.2) for name, error in errors.items()]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (_lines(1.0, 1.2, 3.0, 0.7, 0.8), "Sharing may have helped: the error is 20 % below"),
        (_lines(1.0, 1.2, 3.0, 0.4, 0.5), "Sharing helped: the error is 50 % below"),
        (_lines(9.0, 9.5, 1e-9, 1e-4, 1e-3, one=1.0), "over 99 % below that of the users' own means"),
        (_lines(9.0, 9.5, 1e-9, 1e-4, 1e-3, one=1.0), "does a column repeat the target"),
        (_lines(1e-30, 1e-30, 3.0, 2e-30, 2e-30, user=1.0), "the target does not change within a user"),
        (_lines(1.0, 1.2, 3.0, 1.1, 1.0), "Without noise it would not have helped either: try other columns"),
    ],
)
def test_the_verdict_knows_chance_copies_of_the_target_and_targets_that_never_change(
    lines: list[Line], said: str
) -> None:
    """Twenty pupils showed 9 % by chance; a copy of the target "helped by 100 %"; rounding errors were compared."""
    assert said in verdict(lines)


def test_free_text_is_pointed_out_as_ids_are(tmp_path: Path) -> None:
    """Remarks of doctors took sixteen features of the budget, unnoticed since one row was there twice."""
    from tacitly.data.selection import id_like

    frame = patients(40).assign(remark=lambda f: [f"seen, {row}" for row in f["row"]])
    frame = pd.concat([frame, frame[:3]])
    columns = ["remark", "clinic", "dose"]
    assert id_like(open_table(frame), "patient", columns) == {"remark": "is text that hardly ever occurs twice"}


def test_a_plan_that_is_given_a_table_says_what_it_takes_instead(command: Command) -> None:
    """It asked for '--users' only, as if the table were fine."""
    code, _, err = command("plan", "visits.csv", "--user", "patient")
    assert code == 2
    assert "plan reads no private table. Found 'visits.csv'" in err


def test_the_account_of_a_model_is_shown_by_its_folder(command: Command, tmp_path: Path) -> None:
    """There was "no ledger at model", and no word of where it is."""
    patients(40).to_csv(tmp_path / "t.csv", index=False)
    assert command("fit", "t.csv", *FIT, "--exclude", "row", "--no-compare")[0] == 0
    code, out, _ = command("budget", "model")
    assert code == 0
    assert "spent ε" in out
    assert "tacitly budget list" in command("budget", "nothing")[2]


@pytest.mark.parametrize("method", [tacitly.MixedEffects, tacitly.PrivateFedRep])
def test_a_warning_of_too_few_users_points_at_the_line_that_fits(method: type) -> None:
    """It came from "sys:1", and did not name the column whose levels take most of the budget."""
    frame = patients(20)
    columns = ["clinic", "dose"] if method is tacitly.MixedEffects else ["dose"]
    given = {} if method is tacitly.MixedEffects else {"rank": 1}
    with pytest.warns(TooFewUsersWarning) as warned:
        method(epsilon=1.0, **given).fit(frame[columns], frame["score"], frame["patient"])
    assert warned[0].filename == __file__
    if method is tacitly.MixedEffects:
        assert "declared levels (of clinic)" in str(warned[0].message)
