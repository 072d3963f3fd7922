"""The command as a stranger meets it: what it prints, writes, refuses and returns."""

from __future__ import annotations

import ast
import json
import os
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import tacitly.cli
from tacitly.cli.main import main
from tacitly.datasets import make_shared_subspace
from tacitly.methods import REGISTRY

FEDREP = ["--method", "fedrep", "--rank", "1"]


def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: object) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["tacitly", *map(str, words)])
    with pytest.raises(SystemExit) as stop:
        main()
    captured = capsys.readouterr()
    return int(stop.value.code or 0), captured.out, captured.err


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = make_shared_subspace(600, 4, 1, (4, 9), noise=0.1, random_state=0)
    path = tmp_path_factory.mktemp("table") / "rows.csv"
    lines = ["person,a,b,c,d,score"]
    lines += [
        f"p{user:04d}," + ",".join(f"{x:.6f}" for x in row) + f",{y:.6f}"
        for user, row, y in zip(data.users, data.X, data.y, strict=True)
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def fitted(table: Path) -> Path:
    out = table.parent / "model"
    command = ["fit", table, "--user", "person", "--target", "score", *FEDREP, "--epsilon", "2", "--out", out]
    done = subprocess.run(
        [sys.executable, "-m", "tacitly", *map(str, command)], capture_output=True, text=True, check=True
    )
    assert "ε = 2.00 (zero-out)" in done.stdout
    assert "local models" in done.stdout
    assert "p0001" not in done.stdout + done.stderr
    return out


def test_low_rank_plus_sparse_is_fitted_and_predicts(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["fit", table, "--user", "person", "--target", "score", *FEDREP, "--epsilon", "2"]
    method = ["--method", "low-rank-sparse"]
    code, out, _ = run(capsys, monkeypatch, *words, *method, "--out", tmp_path / "model")
    assert code == 0
    assert "ε = 2.00 (zero-out)" in out
    assert "this method, no noise" in out
    code, out, _ = run(capsys, monkeypatch, "predict", tmp_path / "model", table)
    assert code == 0
    assert out.startswith("person,prediction,model\np0000,")
    code, _, err = run(capsys, monkeypatch, *words, "--method", "low-rank-sparse", "--sparsity", "many")
    assert code == 2
    assert "sparsity must be a count" in err
    for option in (["--shared-weight"], ["--sparsity", "3"]):
        code, _, err = run(capsys, monkeypatch, *words, *option)
        assert code == 2
        assert "low-rank-sparse only" in err


def test_a_margin_classifier_is_fitted_under_pure_epsilon(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    header, *lines = table.read_text().splitlines()
    place = header.split(",").index("score")
    cells = [line.split(",") for line in lines]
    for row in cells:
        row[place] = str(int(float(row[place]) > 0))
    labelled = tmp_path / "labelled.csv"
    labelled.write_text("\n".join([header, *map(",".join, cells)]))
    words = ["fit", labelled, "--user", "person", "--target", "score", "--rank", "1", "--epsilon", "2"]
    code, out, _ = run(capsys, monkeypatch, *words, "--method", "margin", "--out", tmp_path / "model")
    assert code == 0
    assert "ε = 2.00 (zero-out), 4.00 (replace-one) at δ = 0" in out
    code, out, _ = run(capsys, monkeypatch, "predict", tmp_path / "model", labelled)
    assert code == 0
    assert {line.split(",")[1] for line in out.splitlines()[1:]} == {"0", "1"}
    code, _, err = run(capsys, monkeypatch, *words, "--method", "margin", "--loss", "poisson")
    assert code == 2
    assert "'hinge' or 'logistic'" in err


def test_centaur_is_fitted_with_users_by_coin_and_predicts(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its own record of accounts: later fits on the same people would be composed with sampled releases, slowly.
    monkeypatch.setenv("TACITLY_HOME", str(tmp_path / "home"))
    words = ["fit", table, "--user", "person", "--target", "score", *FEDREP, "--epsilon", "2", "--no-compare"]
    coin = ["--method", "centaur", "--sampling-rate", "0.5"]
    code, out, _ = run(capsys, monkeypatch, *words, *coin, "--out", tmp_path / "model")
    assert code == 0
    assert "(zero-out)" in out
    releases = json.loads((tmp_path / "model" / "certificate.json").read_text())["releases"]
    assert {release["event"]["sampling_rate"] for release in releases} == {0.5}
    code, out, _ = run(capsys, monkeypatch, "predict", tmp_path / "model", table)
    assert code == 0
    assert out.startswith("person,prediction,model\np0000,")
    code, _, err = run(capsys, monkeypatch, *words, "--sampling-rate", "0.5")
    assert code == 2
    assert "centaur only" in err


def test_help_shows_the_options_of_the_method_and_no_others(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for words in (("--method", "margin", "--help"), ("--help", "--method=margin")):
        code, out, _ = run(capsys, monkeypatch, "fit", "rows.csv", *words)
        assert code == 0
        assert "hinge or logistic" in out
        assert "0.0" in out  # the default of delta: pure epsilon
        assert "--sparsity" not in out
        assert "--sampling-rate" not in out
    code, out, _ = run(capsys, monkeypatch, "fit", "--help")
    assert code == 0
    assert "Options of mixed-effects" in out
    assert "--rank" not in out
    code, out, _ = run(capsys, monkeypatch, "fit", "--help", "--method", "fedrep")
    assert "--rank" in out
    assert "poisson" in out


def test_an_unknown_method_is_answered_with_a_list_of_methods_and_what_they_do(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, err = run(capsys, monkeypatch, "fit", "rows.csv", "--method", "magic")
    assert code == 2
    assert "--method must be one of the methods below. Found 'magic'." in err
    for method in REGISTRY.offered("fit").values():
        assert f"{method.name} " in err
        assert method.summary in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--sparsity", 3], "--sparsity is for --method low-rank-sparse only. Found --method mixed-effects."),
        (["--method", "altmin", "--intercept"], "--intercept is for --method centaur, fedrep, low-rank-sparse and mar"),
        (["--method", "margin", "--rounds", 3], "Found --method margin."),
    ],
)
def test_an_option_of_another_method_gets_one_clear_line(capsys, monkeypatch, words, message) -> None:  # type: ignore[no-untyped-def]
    code, _, err = run(capsys, monkeypatch, "fit", "rows.csv", "--user", "u", "--target", "y", "--epsilon", 1, *words)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1


def test_no_function_of_a_command_is_longer_than_60_lines() -> None:
    for path in Path(tacitly.cli.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                assert (node.end_lineno or 0) - node.lineno < 60, f"{path.name}: {node.name}"


def test_a_model_folder_of_another_version_is_refused_in_one_sentence(
    capsys, monkeypatch, fitted, table, tmp_path
) -> None:  # type: ignore[no-untyped-def]
    copy = tmp_path / "copy"
    shutil.copytree(fitted, copy)
    config = json.loads((copy / "config.json").read_text())
    assert (config["format"], config["version"]) == ("tacitly model", 1)
    for other in ({**config, "version": 2}, {key: config[key] for key in config if key not in ("format", "version")}):
        (copy / "config.json").write_text(json.dumps(other))
        for words in (("predict", copy, table), ("publish", copy, tmp_path / "public"), ("audit", copy, "--quick")):
            code, _, err = run(capsys, monkeypatch, *words)
            assert code == 2
            assert "fit again with this version of tacitly" in err
            assert err.count("\n") == 1


def test_help_is_quick_and_names_every_command() -> None:
    best = 9.0
    for _ in range(3):
        start = time.perf_counter()
        text = subprocess.run([sys.executable, "-m", "tacitly", "--help"], capture_output=True, text=True).stdout
        best = min(best, time.perf_counter() - start)
    for command in ("demo", "fit", "predict", "personalize", "trace", "verify", "budget", "publish"):
        assert command in text
    heavy = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, tacitly.cli.main; print(sorted({'numba', 'scipy', 'sklearn', 'pyarrow'} & set(sys.modules)))",
        ],
        capture_output=True,
        text=True,
    )
    assert heavy.stdout.strip() == "[]"  # what makes it quick, asserted; the time itself depends on the machine


def test_a_model_folder_keeps_public_and_private_apart(fitted: Path) -> None:
    assert sorted(path.name for path in fitted.iterdir()) == [
        "billboard.safetensors",
        "certificate.json",
        "config.json",
        "private",
    ]
    heads = fitted / "private" / "heads.safetensors"
    assert stat.S_IMODE(heads.stat().st_mode) == 0o600
    assert stat.S_IMODE(heads.parent.stat().st_mode) == 0o700
    for name in ("certificate.json", "config.json"):
        assert "p0001" not in (fitted / name).read_text()


def test_verify_accepts_the_model_and_its_ledger(capsys, monkeypatch, fitted) -> None:  # type: ignore[no-untyped-def]
    code, out, _ = run(capsys, monkeypatch, "verify", fitted)
    assert code == 0
    assert "ledger_words: as recorded" in out
    assert "failed" not in out


@pytest.mark.parametrize("edit", ["epsilon", "sigma", "billboard"])
def test_verify_fails_on_an_edit(capsys, monkeypatch, fitted, tmp_path, edit) -> None:  # type: ignore[no-untyped-def]
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-r", fitted, copy], check=True)
    text = (copy / "certificate.json").read_text()
    content = json.loads(text)
    if edit == "epsilon":
        content["epsilon"] = 1.0
    elif edit == "sigma":
        content["releases"][3]["event"]["sigma"] *= 1.5
    else:
        data = bytearray((copy / "billboard.safetensors").read_bytes())
        data[-1] ^= 1
        (copy / "billboard.safetensors").write_bytes(bytes(data))
    (copy / "certificate.json").write_text(json.dumps(content))
    code, out, _ = run(capsys, monkeypatch, "verify", copy)
    assert code == 1
    assert "failed" in out.lower()


def test_predict_personalize_and_publish(capsys, monkeypatch, fitted, table, tmp_path) -> None:  # type: ignore[no-untyped-def]
    code, out, _ = run(capsys, monkeypatch, "predict", fitted, table)
    lines = out.splitlines()
    assert code == 0
    assert lines[0] == "person,prediction,model"
    truth = np.loadtxt(table, delimiter=",", skiprows=1, usecols=5)
    predicted = np.array([float(line.split(",")[1]) for line in lines[1:]])
    assert np.corrcoef(truth, predicted)[0, 1] > 0.95

    public = tmp_path / "public"
    assert run(capsys, monkeypatch, "publish", fitted, public)[0] == 0
    assert sorted(path.name for path in public.iterdir()) == [
        "billboard.safetensors",
        "certificate.json",
        "config.json",
    ]
    rows = table.read_text().splitlines()
    mine = tmp_path / "mine.csv"
    mine.write_text("\n".join(line.split(",", 1)[1] for line in rows[:6]) + "\n")
    head = tmp_path / "head.json"
    assert run(capsys, monkeypatch, "personalize", public, mine, "--out", head)[0] == 0
    assert stat.S_IMODE(head.stat().st_mode) == 0o600
    code, out, _ = run(capsys, monkeypatch, "predict", public, mine, "--head", head)
    assert code == 0
    assert len(out.splitlines()) == 6
    code, out, _ = run(capsys, monkeypatch, "predict", public, table)
    assert code == 0
    assert {line.rsplit(",", 1)[1] for line in out.splitlines()[1:]} == {"population"}


def test_an_uncertified_model_is_not_published_by_default(capsys, monkeypatch, table, tmp_path) -> None:  # type: ignore[no-untyped-def]
    out = tmp_path / "open"
    words = ["fit", table, "--user", "person", "--target", "score", *FEDREP, "--epsilon", "inf", "--out", out]
    with pytest.warns(UserWarning, match="not certified"):
        assert run(capsys, monkeypatch, *words, "--no-compare")[0] == 0
    code, _, err = run(capsys, monkeypatch, "publish", out, tmp_path / "public")
    assert code == 2
    assert "not certified" in err
    assert not (tmp_path / "public").exists()
    assert run(capsys, monkeypatch, "publish", out, tmp_path / "public", "--allow-uncertified")[0] == 0


def test_an_account_with_nothing_left_refuses_before_touching_data(capsys, monkeypatch, table, tmp_path) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("TACITLY_HOME", str(tmp_path / "home"))
    ledger = tmp_path / "people.ledger"
    assert run(capsys, monkeypatch, "budget", "create", ledger, "--epsilon", 2)[0] == 0
    words = ["fit", table, "--user", "person", "--target", "score", *FEDREP, "--no-compare", "--ledger", ledger]
    assert run(capsys, monkeypatch, *words, "--epsilon", 2, "--out", tmp_path / "first")[0] == 0
    code, _, err = run(capsys, monkeypatch, *words, "--epsilon", 1, "--out", tmp_path / "more")
    assert code == 3
    assert "Nothing was drawn" in err
    code, out, _ = run(capsys, monkeypatch, "budget", ledger)
    assert code == 0
    assert "spent ε = 2.00 of 2" in out


@pytest.mark.parametrize(
    ("spoil", "words", "message"),
    [
        (lambda text: text.replace("p0003,", ",", 1), (), "1 row without a user"),
        (lambda text: text.replace("\n", "\np0000,oops,1,1,1,1\n", 1), (), "column 'a': 1 row not numbers"),
        (lambda text: text.replace("\n", "\np0000,inf,1,1,1,1\n", 1), (), "column 'a': 1 row infinite"),
        (lambda text: text.splitlines()[0] + "\n", (), "no rows"),
        (lambda text: "", (), "empty"),
        (lambda text: text, ("--target", "scor"), "Did you mean 'score'"),
        (lambda text: text, ("--features", "a,zz"), "zz"),
        (lambda text: text, ("--rank", "9"), "rank must be a whole number from 1 to"),
        (lambda text: text, ("--epsilon", "-1"), "epsilon must be positive"),
        (lambda text: text, ("--classes", "0,1"), "--classes is for --loss logistic and hinge. Found --loss squared"),
        (lambda text: text, ("--engine", "magic"), "--engine must be local, cuda or ray"),
        (
            lambda text: text,
            ("--adjacency", "sideways"),
            "--adjacency must be zero-out or replace-one. Found 'sideways'.",
        ),
    ],
)
def test_mistakes_get_one_line_exit_code_two_and_leave_nothing(  # type: ignore[no-untyped-def]
    capsys, monkeypatch, table, tmp_path, spoil, words, message
) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(spoil(table.read_text()))
    options = {"--user": "person", "--target": "score", "--method": "fedrep", "--rank": "1", "--epsilon": "1"}
    options |= {"--out": str(tmp_path / "m")}
    options |= dict(zip(words[::2], words[1::2], strict=True))
    code, _, err = run(capsys, monkeypatch, "fit", path, *[word for pair in options.items() for word in pair])
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
    assert "Traceback" not in err
    assert [path.name for path in tmp_path.iterdir()] == ["rows.csv"]


def test_folders_that_are_not_models_are_named(capsys, monkeypatch, tmp_path) -> None:  # type: ignore[no-untyped-def]
    for command in (
        ["verify", tmp_path],
        ["predict", tmp_path, tmp_path / "x.csv"],
        ["publish", tmp_path, tmp_path / "y"],
    ):
        code, _, err = run(capsys, monkeypatch, *command)
        assert code == 2
        assert "is not a model folder" in err
    code, _, err = run(capsys, monkeypatch, "budget", tmp_path / "none")
    assert code == 2
    assert "no ledger" in err


def test_the_demo_shows_the_whole_thing(capsys, monkeypatch, tmp_path) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.chdir(tmp_path)
    for _ in range(2):  # and again over its own folder
        code, out, _ = run(capsys, monkeypatch, "demo", "--users", 1500)
        assert code == 0
    assert "ε = 1.00 (zero-out)" in out
    assert os.path.isdir("demo-model")


def test_a_table_can_be_grouped_on_disk_and_used_again(capsys, monkeypatch, table, tmp_path) -> None:  # type: ignore[no-untyped-def]
    words = ["fit", table, "--user", "person", "--target", "score", *FEDREP, "--epsilon", 1, "--no-compare"]
    for name in ("first", "second"):
        folder = tmp_path / "rows"
        code, out, _ = run(capsys, monkeypatch, *words, "--out", tmp_path / name, "--on-disk", folder)
        assert code == 0
        assert "600 users" in out
    assert (tmp_path / "rows" / "X.npy").exists()


def test_svd_finds_components_and_says_what_it_cost(capsys, monkeypatch, table, tmp_path) -> None:  # type: ignore[no-untyped-def]
    out = tmp_path / "components"
    words = ["svd", table, "--rank", 2, "--epsilon", 1, "--features", "a,b,c,d"]
    code, text, _ = run(capsys, monkeypatch, *words, "--unit", "user", "--user", "person", "--out", out)
    assert code == 0
    assert "ε = 1.00 (zero-out)" in text
    assert "unit: user" in text
    assert run(capsys, monkeypatch, "verify", out)[0] == 0
    assert run(capsys, monkeypatch, "publish", out, tmp_path / "public")[0] == 0
    code, _, err = run(capsys, monkeypatch, "predict", out, table)
    assert code == 2
    assert "cannot predict" in err
    code, text, _ = run(
        capsys, monkeypatch, *words, "--unit", "row", "--low=-9", "--high=9", "--out", tmp_path / "rows"
    )
    assert code == 0
    assert "unit: row" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--unit", "user"], "needs --user"),
        (["--unit", "world"], "--unit must be"),
        (["--unit", "row", "--low", 1], "go together"),
        (["--unit", "row", "--rank", "two"], "--rank must be"),
        (["--unit", "row", "--rank", 9], "n_components must be"),
    ],
)
def test_svd_refuses_what_makes_no_sense(capsys, monkeypatch, table, tmp_path, words, message) -> None:  # type: ignore[no-untyped-def]
    fixed = ["svd", table, "--rank", 2, "--epsilon", 1, "--features", "a,b", "--out", tmp_path / "out"]
    code, _, err = run(capsys, monkeypatch, *fixed, *words)
    assert code == 2
    assert message in err
