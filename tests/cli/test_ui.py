"""The local page: who may ask, what forms do, and that a fit is the one of the command."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("starlette", reason="not installed: the extra ui")
pytest.importorskip("httpx", reason="not installed: httpx, which Starlette's test client needs")

from starlette.testclient import TestClient

from tacitly.cli.ui import pages
from tacitly.cli.ui.server import application
from tacitly.cli.ui.work import EPSILONS, Desk, Job, Order
from tacitly.privacy.certificate import Certificate

HOSTILE = "</script><img src=//evil.example>\"'"
HERE = "http://127.0.0.1:8000"


def written(folder: Path, users: int = 120) -> None:
    rng = np.random.default_rng(0)
    lines = [f"who,x,{HOSTILE.replace(',', '')},y".replace('"', "")]
    for user in range(users):
        level = rng.normal()
        lines += [f"u{user},{x},{z},{level + x}" for x, z in rng.normal(size=(5, 2))]
    (folder / "rows.csv").write_text("\n".join(lines))


@pytest.fixture
def client(tmp_path: Path) -> TestClient:
    written(tmp_path)
    return TestClient(application(tmp_path, "token"), base_url=HERE)


def test_without_the_token_nothing_is_answered(client: Any) -> None:
    for path in ("/", "/wrong/", "/tokenx/", "/token/../", "/rows.csv", "/token/rows.csv"):
        assert client.get(path).status_code == 404, path
    assert client.get("/token/").status_code == 200


def test_another_host_name_is_refused(client: Any) -> None:
    for host in ("evil.example", "evil.example:8000", "127.0.0.1.evil.example"):
        assert client.get("/token/", headers={"Host": host}).status_code == 400
    assert client.get("/token/", headers={"Host": "localhost:9"}).status_code == 200


def test_a_form_of_another_page_is_refused(client: Any) -> None:
    assert client.post("/token/fit", headers={"Origin": "http://evil.example"}).status_code == 403
    assert client.post("/token/fit", headers={"Origin": HERE}).status_code == 400  # a form without fields


def test_pages_ask_for_nothing_and_escape_what_is_not_theirs(client: Any) -> None:
    for path in ("/token/", "/token/table?path=rows.csv", f"/token/table?path={HOSTILE}", "/token/run/7"):
        answer = client.get(path)
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "<img" not in answer.text
        assert "http://" not in answer.text
        assert "https://" not in answer.text


def test_dates_are_left_out_unless_somebody_objects(client: Any, tmp_path: Path) -> None:
    (tmp_path / "days.csv").write_text("who;day;x;y\n" + "".join(f"u{i};0{i}.03.2024;{i};{i}\n" for i in range(1, 9)))
    page = client.get("/token/table?path=days.csv").text
    assert next(line for line in page.split("<label>") if " checked" in line).count("day") == 2
    assert page.count(" checked") == 1


def test_the_slider_says_what_every_stop_buys() -> None:
    order = Order("rows.csv", "who", "y")
    desk_says = pages.plan(order, _looked(), f"no plan: {HOSTILE}", "model", "nonce")
    data = desk_says.split('id="buys">')[1].split("</script>")[0]
    stops = json.loads(data)
    assert [stop["value"] for stop in stops] == [str(epsilon) for epsilon in EPSILONS]
    assert HOSTILE in stops[0]["share"]
    assert "<img" not in desk_says


def _looked() -> Any:
    from tacitly.cli.ui.work import Looked

    return Looked(120, 600, 2, ("x", "z"), ("numbers: x, z",))


def test_orders_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"Missing.*target"):
        Order.of([("path", "rows.csv"), ("user", "who")])
    for epsilon in ("-1", "0", "inf", "nan", "much"):
        with pytest.raises(ValueError, match="ε must be"):
            Order.of([("path", "rows.csv"), ("user", "who"), ("target", "y"), ("epsilon", epsilon)])
    with pytest.raises(ValueError, match="two columns"):
        Order.of([("path", "rows.csv"), ("user", "who"), ("target", "who")])
    for name in ("", "..", "a/b", "/etc", ".hidden"):
        with pytest.raises(ValueError, match="name of a new folder"):
            Desk(tmp_path).begin(Order("rows.csv", "who", "y", name=name))
    (tmp_path / "taken").mkdir()
    with pytest.raises(ValueError, match="exists already"):
        Desk(tmp_path).begin(Order("rows.csv", "who", "y", name="taken"))


def test_an_error_of_a_fit_is_shown_as_text() -> None:
    job = Job(Order("rows.csv", "who", "y"), error=HOSTILE, done=True)
    assert "<img" not in pages.run(job.state(), "nonce")


def test_a_fit_is_that_of_the_command(client: Any, tmp_path: Path) -> None:
    form = {"path": "rows.csv", "user": "who", "target": "y", "epsilon": "8.0", "name": "mine"}
    answer = client.post("/token/fit", data=form, follow_redirects=False)
    assert answer.status_code == 303
    with client.stream("GET", "/token/run/1/events") as events:
        states = [json.loads(line[6:]) for line in events.iter_lines() if line.startswith("data: ")]
    assert states[-1]["done"]
    assert states[-1]["error"] == ""
    assert states[-1]["released"] == states[-1]["planned"] > 0
    assert (tmp_path / "mine" / "private" / "heads.safetensors").is_file()
    certificate = Certificate.from_json((tmp_path / "mine" / "certificate.json").read_text("utf-8"))
    assert certificate.certified
    assert certificate.account is not None  # the users' own, as with 'tacitly fit'
    assert Path(states[-1]["account"]).is_file()
    assert "Done" in client.get("/token/run/1").text
    assert "public edition" in client.get("/token/report/public/mine").text
    assert "For whom did it help?" in client.get("/token/report/private/mine").text
    assert client.get("/token/report/public/other").status_code == 400


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        ({"loss": "logistic", "classes": "no, yes"}, "mixed-effects"),
        ({"loss": "poisson"}, "mixed-effects"),
        ({"loss": "squared"}, "fedrep"),
    ],
)
def test_classes_counts_and_other_methods_are_fitted_too(tmp_path: Path, kind: dict[str, str], method: str) -> None:
    rng = np.random.default_rng(0)
    rows = [(user, *rng.normal(size=2)) for user in range(100) for _ in range(4)]
    told: dict[str, Callable[[float], Any]] = {
        "logistic": lambda x: "yes" if x > 0 else "no",
        "poisson": lambda x: int(abs(x) * 2),
        "squared": str,
    }
    lines = [f"u{user},{x},{z},{told[kind['loss']](x)}" for user, x, z in rows]
    (tmp_path / "rows.csv").write_text("\n".join(["who,x,z,y", *lines]))
    fields = {"path": "rows.csv", "user": "who", "target": "y", "epsilon": "8", "method": method, **kind}
    desk, order = Desk(tmp_path), Order.of(fields.items())
    assert desk.look(order).users == 100
    job = Job(order)
    desk._fit(job)
    assert job.error == ""
    desk._jobs.append(job)
    assert "For whom did it help?" in desk.report("model", "private")
    if "classes" in kind:
        config = json.loads((tmp_path / "model" / "config.json").read_text("utf-8"))
        assert "yes" in json.dumps(config)


def test_a_method_that_does_not_predict_classes_is_refused() -> None:
    fields = {"path": "rows.csv", "user": "who", "target": "y", "loss": "logistic", "classes": "0,1"}
    order = Order.of({**fields, "method": "centaur"}.items())
    with pytest.raises(ValueError, match="numbers only"):
        _ = order.parameters
    with pytest.raises(ValueError, match="two or more labels"):
        Order.of({**fields, "classes": ""}.items())


def test_one_fit_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Desk, "_fit", lambda self, job: time.sleep(0))
    desk = Desk(tmp_path)
    desk.begin(Order("rows.csv", "who", "y", name="a"))
    with pytest.raises(ValueError, match="being fitted"):
        desk.begin(Order("rows.csv", "who", "y", name="b"))
