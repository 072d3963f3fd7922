"""``tacitly serve`` and ``tacitly join`` as a stranger meets them, before anything is started."""

from __future__ import annotations

import json
import os
import signal
import stat
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tacitly
from engines import users
from tacitly.cli.main import main
from tacitly.cli.serve import in_words
from tacitly.deployment import join, serve
from tacitly.deployment.join import fingerprint, open_node, personalize, terms
from tacitly.deployment.join import prepare as site_prepare
from tacitly.deployment.other_federations import other_federations
from tacitly.deployment.page import page
from tacitly.deployment.serve import prepare
from tacitly.deployment.server_app import dismiss
from tacitly.deployment.settings import Settings, Status
from tacitly.deployment.warm_up import warm_up
from tacitly.federation.flower import fleet
from tacitly.federation.flower.card import Card
from tacitly.federation.flower.kept_heads import read_heads
from tacitly.federation.flower.keys import opened, signed
from tacitly.federation.flower.link import HEARD, Signs
from tacitly.federation.flower.messages import Answer
from tacitly.federation.flower.node import Node
from tacitly.privacy import home
from tacitly.privacy.accounting import mu_of
from tacitly.privacy.guarantee import Budget, GaussianEvent, Sensitivity
from tacitly.privacy.ledger import Ledger, LedgerMismatch


def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: object) -> tuple[int, str]:
    monkeypatch.setattr(sys, "argv", ["tacitly", *map(str, words)])
    with pytest.raises(SystemExit) as stop:
        main()
    captured = capsys.readouterr()
    return int(stop.value.code or 0), captured.out + captured.err


@pytest.fixture
def site(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Path:
    rng = np.random.default_rng(0)
    rows = [f"anna{i // 4},{a:.3f},{b:.3f},{a:.3f}" for i, (a, b) in enumerate(rng.normal(size=(40, 2)))]
    (tmp_path / "rows.csv").write_text("\n".join(["who,a,b,y", *rows]) + "\n")
    words = ("join", tmp_path / "north", "--table", tmp_path / "rows.csv", "--user", "who", "--target", "y")
    code, said = run(capsys, monkeypatch, *words)
    assert code == 0, said
    assert "10 users" in said
    return tmp_path / "north"


def test_a_site_tells_what_is_public_and_keeps_its_keys(site: Path) -> None:
    card = json.loads((site / "card.json").read_text())
    assert (card["name"], card["users"], card["features"], card["target"]) == ("north", 10, ["a", "b"], "y")
    assert card["rows"] is None
    assert "anna" not in json.dumps(card)
    for key in ("node.key", "mask.key"):
        assert stat.S_IMODE((site / key).stat().st_mode) == 0o600
    assert stat.S_IMODE(site.stat().st_mode) == 0o700


def test_a_site_leaves_out_columns_that_it_cannot_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its table had text and missing cells, as tables have, and no option to leave them out."""
    cells = [f"p{i // 2},{i},{'' if i == 3 else i % 5},South,{i % 7}" for i in range(12)]
    (tmp_path / "rows.csv").write_text("\n".join(["who,a,b,clinic,y", *cells]) + "\n")
    words = ("join", tmp_path / "south", "--table", tmp_path / "rows.csv", "--user", "who", "--target", "y")
    code, said = run(capsys, monkeypatch, *words)
    assert code == 2
    assert "--exclude NAME leaves a column out" in said
    code, said = run(capsys, monkeypatch, *words, "--exclude", "clinik")
    assert code == 2
    assert "Did you mean 'clinic'?" in said
    code, said = run(capsys, monkeypatch, *words, "--exclude", "clinic,b")
    assert code == 0, said
    assert json.loads((tmp_path / "south" / "card.json").read_text())["features"] == ["a"]


def test_what_is_missing_is_said(
    tmp_path: Path, site: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = ("--method", "fedrep", "--rank", 1, "--epsilon", 1, "--node", site / "card.json")
    for words, expected in (
        (("serve", tmp_path / "hub"), "give --epsilon and a --node"),
        (("serve", tmp_path / "hub", "--method", "svd", "--epsilon", 1), "give --rank, --epsilon and a --node"),
        (("join", tmp_path / "south"), "give --table, --user"),
        (("join", tmp_path / "a b", "--table", tmp_path / "rows.csv", "--user", "who"), "letters, digits"),
        (("serve", tmp_path / "hub", *alone, "--trust", "secure"), "three nodes"),
        (("serve", tmp_path / "hub", *alone, "--set", "loss"), "--set must be name=value"),
        (("serve", tmp_path / "hub", *alone, "--set", "colour=3"), "does not fit --method fedrep"),
        (("serve", tmp_path / "hub", *alone, "--method", "margin", "--rounds", 3), "Found --method margin"),
        (("serve", tmp_path / "hub", *alone, "--method", "magic"), "--method must be one of"),
        (("serve", tmp_path / "hub", *alone, "--method", "trace", "--trust", "node"), "protect whole users"),
        (("serve", tmp_path / "hub", *alone, "--method", "margin", "--trust", "node"), "protect whole users"),
    ):
        code, said = run(capsys, monkeypatch, *words)
        assert (code, expected in said) == (2, True), said
    code, said = run(capsys, monkeypatch, "serve", tmp_path / "hub", "--status")
    assert (code, "not started" in said) == (0, True)


def settings(tmp_path: Path, site: Path, **changed: object) -> Settings:
    card = Card.from_json((site / "card.json").read_text())
    options = {
        "server": "127.0.0.1:9",
        "out": str(tmp_path / "m"),
        "method": "fedrep",
        "options": {"rank": 1},
        "epsilon": 1.0,
        "cards": (card,),
    }
    return Settings(**options | changed)  # type: ignore[arg-type]


def test_a_coordinators_folder_says_the_same_again_and_its_invitation_holds_no_secret(
    tmp_path: Path, site: Path
) -> None:
    made = settings(tmp_path, site)
    prepare(tmp_path / "hub", made)
    assert Settings.load(tmp_path / "hub") == made
    text = (tmp_path / "hub" / "invitation.json").read_text()
    assert "PRIVATE" not in text
    key = (tmp_path / "hub" / "coordinator.key").read_bytes()
    assert key.hex() not in text
    invitation = json.loads(text)
    public = bytes.fromhex(invitation["coordinator"])
    assert opened(signed(b"ask", key), public) == b"ask"
    assert opened(signed(b"ask", key)[:-1] + b"x", public) is None
    assert len(fingerprint(invitation).replace("-", "")) == 64  # all of a SHA-256


def test_a_ceiling_that_a_site_set_once_stands(tmp_path: Path, site: Path) -> None:
    prepare(tmp_path / "hub", settings(tmp_path, site, trust="node"))
    invitation = json.loads((tmp_path / "hub" / "invitation.json").read_text())
    own = Budget(epsilon=3.0, delta=1e-6)
    open_node(site, invitation, ceiling=own)
    assert open_node(site, {**invitation, "epsilon": "2"})._ceiling == own  # another run, under the same ceiling
    with pytest.raises(ValueError, match="asks for ε = 50; this site's ceiling is ε = 3"):
        open_node(site, {**invitation, "epsilon": "50"})
    with pytest.raises(LedgerMismatch, match="cannot be changed"):
        open_node(site, invitation, ceiling=Budget(epsilon=50.0, delta=1e-6))


def test_no_invitation_talks_a_site_out_of_its_noise(tmp_path: Path, site: Path) -> None:
    prepare(tmp_path / "hub", settings(tmp_path, site))
    central = json.loads((tmp_path / "hub" / "invitation.json").read_text())
    with pytest.raises(ValueError, match="was given a ceiling"):
        open_node(site, central, ceiling=Budget(epsilon=0.1, delta=1e-6))
    with pytest.raises(ValueError, match="says trust 'central', this site 'node'"):
        open_node(site, central, trust="node")
    with pytest.raises(ValueError, match="trust must be one of"):
        open_node(site, {**central, "trust": "none"})
    assert not (site / "node.ledger").exists()
    open_node(site, central)
    assert any("without noise" in line for line in terms(site, central))
    open_node(site, {**central, "trust": "node"}, trust="node")  # from here on it adds noise
    for trust in (None, "central"):
        with pytest.raises(ValueError, match="has a ceiling"):
            open_node(site, central, trust=trust)


def test_a_run_that_does_not_fit_into_what_is_left_is_not_joined(tmp_path: Path, site: Path) -> None:
    prepare(tmp_path / "hub", settings(tmp_path, site, trust="node"))
    invitation = json.loads((tmp_path / "hub" / "invitation.json").read_text())
    open_node(site, invitation, ceiling=Budget(epsilon=1.2, delta=1e-6))
    half = GaussianEvent(sigma=1 / mu_of(0.9, 1e-6), sensitivity=Sensitivity.of_clip(1.0))
    with Ledger(site / "node.ledger") as ledger:
        run = ledger.run(f"{invitation['run']}/1.0", config={}, planned=[half])
        run.release("1.0", half, lambda: np.zeros(1), noise="exact", grid=2.0**-40, coordinates=1)
    open_node(site, invitation)  # the same run goes on
    with pytest.raises(ValueError, match=r"asks for ε = 1; this site's ceiling is ε = 1\.2, and 0\.9 of it is spent"):
        open_node(site, {**invitation, "run": "another"})
    open_node(site, {**invitation, "run": "another", "epsilon": "0.5"})


def test_settings_that_would_change_nothing_are_refused(
    tmp_path: Path, site: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(tmp_path / "hub", settings(tmp_path, site))
    words = ("serve", tmp_path / "hub", "--epsilon", 5, "--set", "mode=auto", "--method", "fedrep", "--rank", 2)
    code, said = run(capsys, monkeypatch, *words)
    assert (code, "--epsilon, --method, --set, --rank would have no effect" in " ".join(said.split())) == (2, True), (
        said
    )
    served: list[Path] = []
    monkeypatch.setattr("tacitly.deployment.serve.serve", lambda folder, say: served.append(folder))
    run(capsys, monkeypatch, "serve", tmp_path / "hub")
    assert served == [tmp_path / "hub"]


def test_a_folder_keeps_the_options_of_its_method_and_its_defaults(
    tmp_path: Path, site: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tacitly.deployment.serve.serve", lambda folder, say: False)
    words = ("--node", site / "card.json", "--epsilon", 1, "--rank", 2, "--out", tmp_path / "m")
    for name, own, options, delta in (
        ("margin", ("--loss", "logistic", "--set", "choices=3"), {"rank": 2, "loss": "logistic", "choices": 3}, 0.0),
        ("svd", ("--unit", "user", "--center"), {"n_components": 2, "unit": "user", "center": True}, 1e-6),
        ("centaur", ("--intercept", "--delta", 1e-7), {"rank": 2, "fit_intercept": True}, 1e-7),
    ):
        _, said = run(capsys, monkeypatch, "serve", tmp_path / name, "--method", name, *words, *own)
        assert "could not be finished" in said
        stored = Settings.load(tmp_path / name)
        assert (stored.method, stored.options, stored.delta) == (name, options, delta)
        assert stored.learns["several"] is True


def test_where_flowers_state_is_new_nodes_are_registered_anew(tmp_path: Path, site: Path) -> None:
    hub = tmp_path / "hub"
    prepare(hub, settings(tmp_path, site))
    (hub / "nodes.json").write_text('{"north": 1}')
    (serve._memory(hub) / "state.db").touch()  # a coordinator that was killed
    with serve._forgotten(hub):
        assert (hub / "nodes.json").exists()
    with serve._forgotten(hub):  # a container that was started again: no reboot, and nothing in memory
        assert not (hub / "nodes.json").exists()


@pytest.mark.parametrize("end", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_what_nodes_sent_is_wiped_however_the_coordinator_ends(
    end: type[BaseException], tmp_path: Path, site: Path
) -> None:
    prepare(tmp_path / "hub", settings(tmp_path, site))
    memory = serve._memory(tmp_path / "hub")
    before = signal.getsignal(signal.SIGTERM)  # not the system's own where another test has started Ray

    def coordinate() -> None:
        with serve._forgotten(tmp_path / "hub"):
            (memory / "state.db").write_bytes(b"sums")
            if end is SystemExit:
                os.kill(os.getpid(), signal.SIGTERM)
            raise end

    with pytest.raises(end):
        coordinate()
    assert not memory.exists()
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("told", "compiles"),
    [
        ({"method": "fedrep"}, False),
        ({"method": "svd"}, False),
        ({"method": "centaur"}, False),
        ({"method": "fedrep", "loss": "logistic"}, True),
        ({"method": "margin", "several": True}, True),
        ({"method": "trace", "unit": "user"}, True),
    ],
)
def test_a_site_compiles_what_it_will_be_asked_before_it_says_that_it_is_there(
    told: dict[str, str], compiles: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered: list[bytes] = []
    real = Node.answer
    monkeypatch.setattr(Node, "answer", lambda self, data: answered.append(real(self, data)) or answered[-1])
    assert warm_up(Node("n", users(30), tmp_path), told) == compiles
    assert bool(answered) == compiles
    assert {Answer.from_bytes(data).code for data in answered} <= {"ok"}
    assert not list(tmp_path.iterdir())  # made-up heads stay elsewhere


def test_a_site_joins_whatever_comes_of_compiling(tmp_path: Path) -> None:
    said: list[str] = []
    join._warm(Node("n", users(30), tmp_path), {"method": "magic"}, said.append)
    assert said == ["n: nothing could be compiled beforehand (ValueError); the first rounds may be slow"]


def test_a_site_joins_only_under_its_own_mask_key_and_is_told_the_terms(tmp_path: Path, site: Path) -> None:
    prepare(tmp_path / "hub", settings(tmp_path, site, trust="node"))
    invitation = json.loads((tmp_path / "hub" / "invitation.json").read_text())
    open_node(site, invitation)
    for keys in ({"north": "ab" * 32}, {"south": "ab" * 32}, {}):
        with pytest.raises(ValueError, match="must hold the mask key of north"):
            open_node(site, {**invitation, "mask_keys": keys})
    own = invitation["mask_keys"]["north"]
    for spelling in (own, own.upper(), f"{own[:2]} {own[2:]}"):
        with pytest.raises(ValueError, match="two sites the same mask key"):
            open_node(site, {**invitation, "mask_keys": {"north": own, "south": spelling}})
    three = {**invitation, "trust": "secure", "mask_keys": {"north": own, "south": "aa" * 32, "west": "bb" * 32}}
    said = "\n".join(terms(site, three))
    for part in (
        "3 sites: north, south, west",
        "ε = 1, δ = 1e-06",
        "ceiling is ε = 1",
        "all but 1 of them must follow the protocol",
        fingerprint(three),
    ):
        assert part in said
    for changed in ({"colluding": 5}, {"mask_keys": {**three["mask_keys"], "west": "cc" * 32}}):
        assert fingerprint({**three, **changed}) != fingerprint(three)


def test_a_newcomers_heads_are_those_of_the_models_own_loss(tmp_path: Path) -> None:
    data = users(30, name="logistic")
    model = tacitly.PrivateFedRep(1, 2.0, loss="logistic", fit_intercept=True).fit(users(500, name="logistic"))
    site_prepare(tmp_path / "new", "new", data, tell_rows=True)
    assert Card.from_json((tmp_path / "new" / "card.json").read_text()).rows == data.n_rows
    kept = read_heads(personalize(tmp_path / "new", model))
    expected = model.with_heads_of(data)
    np.testing.assert_allclose(kept["heads"], np.column_stack([expected.heads_, expected.intercepts_]), atol=1e-10)


def test_every_coordinators_folder_names_its_run_anew(tmp_path: Path, site: Path) -> None:
    assert settings(tmp_path, site).run != settings(tmp_path, site).run


def test_folders_and_invitations_of_another_version_are_refused_in_one_sentence(
    tmp_path: Path, site: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = tmp_path / "hub"
    prepare(hub, settings(tmp_path, site))
    for path, words in (
        (hub / "settings.json", ("serve", hub)),
        (hub / "invitation.json", ("join", site, "--invitation", hub / "invitation.json")),
    ):
        content = json.loads(path.read_text())
        assert content["version"] == 1
        for other in ({**content, "version": 2}, {key: content[key] for key in content if key != "format"}):
            path.write_text(json.dumps(other))
            code, said = run(capsys, monkeypatch, *words)
            assert (code, "use one version of tacitly everywhere" in " ".join(said.split())) == (2, True), said


def test_a_site_predicts_with_the_heads_of_its_users(
    tmp_path: Path, site: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A federation ended without predictions: "not a model folder", "not a head written by personalize"."""
    cohort = tacitly.Cohort.open(site / "cohort")
    rng = np.random.default_rng(1)
    X, others = rng.normal(size=(900, 2)), np.repeat(np.arange(300), 3)
    public = tacitly.MixedEffects(8.0).fit(
        tacitly.Cohort.from_arrays(X, X[:, 0], others, feature_names=["a", "b"], target_name="y")
    )
    public.take_public_arrays(public.public_arrays())  # as a federation leaves it: without anybody's head
    tacitly.save(public, tmp_path / "model")
    words = ("predict", tmp_path / "model", tmp_path / "rows.csv", "--heads", site)
    code, said = run(capsys, monkeypatch, *words)
    assert (code, "has no heads yet" in said) == (2, True)
    assert run(capsys, monkeypatch, "join", site, "--personalize-only", tmp_path / "model")[0] == 0
    code, said = run(capsys, monkeypatch, *words, "--std")
    assert code == 0, said
    lines = said.splitlines()
    assert lines[0] == "who,prediction,std,model"
    expected = public.with_heads_of(cohort).predict(cohort.X, np.repeat(cohort.users, np.diff(cohort.offsets)))
    found = {(name, round(float(value), 4)) for name, value, _, kind in (line.split(",") for line in lines[1:])}
    assert {value for _, value in found} == {round(float(value), 4) for value in expected}
    assert all(line.endswith(",personal") for line in lines[1:])
    other = tacitly.PrivateFedRep(1, 8.0).fit(X, X[:, 0], others)
    other.feature_names_in_ = np.array(["a", "b"])
    tacitly.save(other, tmp_path / "other")
    code, said = run(capsys, monkeypatch, "predict", tmp_path / "other", tmp_path / "rows.csv", "--heads", site)
    assert (code, "are of another model" in said) == (2, True)


def test_heads_of_another_model_of_the_same_width_are_refused(tmp_path: Path, site: Path) -> None:
    """Mixed effects have no basis: any heads of the right width were taken."""
    rng = np.random.default_rng(1)
    X, others = rng.normal(size=(900, 2)), np.repeat(np.arange(300), 3)
    names = {"feature_names": ["a", "b"], "target_name": "y"}
    first, second = (
        tacitly.MixedEffects(8.0).fit(tacitly.Cohort.from_arrays(X, sign * X[:, 0], others, **names))
        for sign in (1.0, -1.0)
    )
    personalize(site, first)
    assert join.take_heads(site, tacitly.load(tacitly.save(first, tmp_path / "first"))) == "who"
    with pytest.raises(ValueError, match="are of another model"):
        join.take_heads(site, second)


def test_a_site_ends_when_the_run_does_and_says_so(tmp_path: Path, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It answered until it was interrupted, and nobody at the site knew that there was a model."""
    prepare(tmp_path / "hub", settings(tmp_path, site))
    invitation = json.loads((tmp_path / "hub" / "invitation.json").read_text())
    heard: list[bytes] = []

    class Sites:
        """A transport with one site, which is there, and one that is not."""

        def __init__(self, answer: Callable[[bytes], bytes]) -> None:
            self.answer = answer

        def online(self) -> list[int]:
            return [7]

        def begin(self) -> None: ...

        def send(self, messages: dict[int, bytes]) -> None:
            heard.extend(self.answer(data) for data in messages.values())

        def receive(self) -> list[tuple[int, bytes]]:
            return [(7, b"")]

    def stay(answer: Callable[[bytes], bytes], *, until: Callable[[], bool], **_: object) -> None:
        assert not until()
        dismiss(Sites(answer), [7, 8], invitation["run"])
        assert until()

    monkeypatch.setattr(fleet, "stay", stay)
    said: list[str] = []
    join.join(site, invitation, said.append)
    assert heard == [b""]
    assert said[-1] == "north: the run has finished"
    assert any(line.startswith("north: waiting for ") for line in said)  # where nobody answers this is the last line


def test_the_coordinator_is_told_what_was_learned_and_who_was_missing(
    tmp_path: Path, site: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A site was lost after ten of 35 releases, and the run ended with a certificate and not a word about it."""
    prepare(tmp_path / "hub", settings(tmp_path, site))

    def finished(folder: Path, _: object) -> bool:
        people = tacitly.datasets.make_shared_subspace(300, 2, 1, 6, random_state=0)
        model = tacitly.MixedEffects(epsilon=8.0).fit(people.X, people.y, people.users)
        tacitly.save(model, Settings.load(folder).out)
        Status(folder).change(state="finished", last_round={"silent": ["north"]})
        return True

    monkeypatch.setattr(serve, "serve", finished)
    code, said = run(capsys, monkeypatch, "serve", tmp_path / "hub")
    assert code == 0, said
    assert "mixed effects of 300 users" in said
    assert "note: north did not answer at the end" in said
    assert "silent" in run(capsys, monkeypatch, "serve", tmp_path / "hub", "--status")[1]


def test_the_status_is_for_people_and_as_json_for_programs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    status = Status(tmp_path)
    sites = {"north": "here", "south": "not here"}
    status.change(state="waiting for nodes", planned=10, users=90, epsilon=1.0, sites=sites)
    for count in (1, 2):
        status.release("column scales", count, 0.25)
    code, said = run(capsys, monkeypatch, "serve", tmp_path, "--status")
    assert code == 0
    for words in ("running", "north: here; south: not here", "2 of 10", "0.25 of 1.0", "time left", "about 0 s"):
        assert words in said, said
    assert "{" not in said
    code, said = run(capsys, monkeypatch, "serve", tmp_path, "--json")
    assert json.loads(said)["sites"] == sites


def test_the_page_stays_until_whoever_looks_has_seen_the_end(tmp_path: Path) -> None:
    status = Status(tmp_path)
    status.change(state="running")
    seen: list[str] = []

    def look(address: str) -> None:
        for _ in range(20):
            try:
                seen.append(json.loads(urllib.request.urlopen(address + "status.json").read())["state"])
            except OSError:
                return
            time.sleep(0.2)

    with page(tmp_path, 0) as address:
        looking = threading.Thread(target=look, args=(address,))
        looking.start()
        while not seen:
            time.sleep(0.01)
        status.change(state="finished")
    looking.join()
    assert seen[-1] == "finished"


def test_a_sites_account_adds_up_federations_and_fits_on_the_same_people(
    tmp_path: Path, site: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two federations under trust central were on two coordinators' ledgers, and nobody added them up."""
    monkeypatch.setenv("TACITLY_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(fleet, "stay", lambda *_, **__: None)  # no coordinator is there to answer

    def joined(hub: str, *more: object, folder: Path = site) -> tuple[int, str]:
        if not (tmp_path / hub).exists():
            card = Card.from_json((folder / "card.json").read_text())
            prepare(tmp_path / hub, settings(tmp_path, site, cards=(card,)))
        code, said = run(capsys, monkeypatch, "join", folder, "--invitation", tmp_path / hub / "invitation.json", *more)
        return code, " ".join(said.split())

    code, said = joined("one")
    assert code == 0, said
    assert "have spent" not in said
    assert "charged to the account of these users" in said
    code, said = joined("two")
    assert "these users have spent ε = 1.00 (zero-out, δ = 1e-06); this federation brings it to 1.46" in said
    code, said = joined("two")  # joining again, after an interruption, costs nothing
    assert "these users have spent ε = 1.46 (zero-out, δ = 1e-06); resuming" in said
    words = ("--table", tmp_path / "rows.csv", "--user", "who", "--target", "y")
    assert run(capsys, monkeypatch, "join", tmp_path / "again", *words)[0] == 0
    code, said = joined("three", folder=tmp_path / "again")  # another folder with the same people
    assert "have spent ε = 1.46" in said
    (seen,) = [seen for seen in home.known().values() if "ledgers" in seen.path]
    with Ledger(seen.path) as account:
        assert account.spent(delta=1e-6) == pytest.approx(1.82, abs=0.01)
        account.limit(2.0)
    code, said = joined("four")
    assert code == 3
    assert "would bring epsilon to 2.1" in said
    with Ledger(seen.path) as account:
        assert account.spent() == pytest.approx(1.82, abs=0.01)


def test_an_invitation_that_a_site_refuses_costs_nothing(
    tmp_path: Path, site: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TACITLY_HOME", str(tmp_path / "home"))
    prepare(tmp_path / "hub", settings(tmp_path, site))
    path = tmp_path / "hub" / "invitation.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "mask_keys": {}}))
    code, said = run(capsys, monkeypatch, "join", site, "--invitation", path)
    assert (code, "Do not join" in said) == (2, True), said
    assert not any("ledgers" in seen.path for seen in home.known().values())


def test_a_run_is_not_free_because_it_has_the_name_of_one_that_is_paid_for(
    tmp_path: Path, site: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TACITLY_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(fleet, "stay", lambda *_, **__: None)
    card, said = Card.from_json((site / "card.json").read_text()), []
    for number, name in enumerate(("run", "run", "\x1b[2J")):  # the last one would be printed by budget show
        prepare(tmp_path / f"{number}", settings(tmp_path, site, cards=(card,), run=name))
        said.append(run(capsys, monkeypatch, "join", site, "--invitation", tmp_path / f"{number}" / "invitation.json"))
    assert [code for code, _ in said] == [0, 2, 2], said
    assert "begun with another configuration; these keys differ: coordinator" in " ".join(said[1][1].split())
    assert "the name of the run must be letters" in said[2][1]
    assert "\x1b" not in said[2][1]


def test_a_site_is_told_that_an_invitation_protects_rows_only(tmp_path: Path, site: Path) -> None:
    prepare(tmp_path / "hub", settings(tmp_path, site, trust="central"))
    invited = join.read_invitation(tmp_path / "hub" / "invitation.json")
    assert "for each row" not in terms(site, invited)[2]
    assert "for each row: it does not hide a user with many rows" in terms(site, {**invited, "unit": "row"})[2]


def test_a_coordinator_says_which_federations_at_the_same_sites_it_does_not_count(
    tmp_path: Path, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TACITLY_HOME", str(tmp_path / "home"))
    first, second = settings(tmp_path, site), settings(tmp_path, site)
    prepare(tmp_path / "one", first)
    prepare(tmp_path / "two", second)
    assert other_federations(tmp_path / "two", second) == ()
    event = GaussianEvent(sigma=1 / mu_of(1.0, 1e-6), sensitivity=Sensitivity.of_clip(1.0))
    with Ledger(tmp_path / "one" / "ledger", ceiling=first.ceiling) as ledger:
        assert other_federations(tmp_path / "two", second) == ()  # it has not spent anything yet
        run = ledger.run(first.run, config={}, planned=[event])
        run.release("sum", event, lambda: np.ones(1), noise="exact", grid=0.0, coordinates=1)
    (note,) = other_federations(tmp_path / "two", second)
    assert note.startswith("north: also in another federation of this coordinator")
    assert "has spent ε = 1.00 (zero-out, δ = 1e-06) and is not counted here" in note
    assert other_federations(tmp_path / "one", first) == ()
    stranger = replace(second.cards[0], key="ssh-ed25519 AAAA other")
    assert other_federations(tmp_path / "two", settings(tmp_path, site, cards=(stranger,))) == ()
    Status(tmp_path / "two").change(state="running", not_counted=[note])
    assert in_words(Status(tmp_path / "two").read())["not counted"] == note


def test_the_status_says_how_long_ago_a_site_was_heard(
    tmp_path: Path, site: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A site that was killed was said to be here for 45 s, until its heartbeat had been missing twice."""
    prepare(tmp_path / "hub", settings(tmp_path, site))
    card = Card.from_json((site / "card.json").read_text())
    monkeypatch.setattr(serve, "_MEMORY", tmp_path)
    monkeypatch.setattr(sys.modules["tacitly.cli.serve"], "_SILENT", 600.0)  # the machine may be busy
    signs = Signs(serve._memory(tmp_path / "hub") / HEARD)
    (serve._place(tmp_path / "hub") / serve._STATE).touch()  # Flower is running
    Status(tmp_path / "hub").change(state="running", sites={"north": "here"})

    def shown() -> str:
        return run(capsys, monkeypatch, "serve", tmp_path / "hub", "--status")[1]

    assert "north: here" in shown()
    signs.heard(serve.raw_key(card))
    assert "north: here" in shown()
    past = time.time() - 1800
    os.utime(signs.file(serve.raw_key(card)), (past, past))
    assert "north: last heard 30 min ago" in shown()
    Status(tmp_path / "hub").change(sites={"north": "not here"})
    assert "north: not here (last heard 30 min ago)" in shown()
    text = run(capsys, monkeypatch, "serve", tmp_path / "hub", "--json")[1]
    assert json.loads(text)["heard"]["north"] == pytest.approx(1800, abs=30)
