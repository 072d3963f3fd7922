"""Networks as data: what travels is what one process computes, and bounded whatever is asked and whatever rows are."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tacitly
from engines import EVERY, fit, promised, users
from federation.test_work_per_user import ROWS as MANY
from federation.test_work_per_user import peak_per_row
from loopback import loopback
from tacitly import neural
from tacitly.arrays import Array
from tacitly.deployment.join import personalize, take_heads
from tacitly.deployment.settings import Settings
from tacitly.federation import wire
from tacitly.federation.bounds import BoundExceeded, check_form
from tacitly.federation.flower.masks import hidden_size
from tacitly.federation.flower.messages import Answer, Ask
from tacitly.federation.flower.node import Node
from tacitly.federation.query import synthetic_rows
from tacitly.federation.shard import Shard
from tacitly.neural.engine.device import one_thread
from tacitly.neural.engine.query import BodyUpdate
from tacitly.neural.engine.update import public_start
from tacitly.neural.table_network.named_network import NamedNetwork
from tacitly.neural.table_network.queries import NetworkHeads, NetworkUpdate, SeenRows
from tacitly.privacy.guarantee import Budget, GaussianEvent, Sensitivity
from tacitly.privacy.ledger import Ledger

CLASSES = {"classes": (0, 1), "feature_range": (-6, 6)}
NUMBERS = {"target_range": (-9, 9), "widths": (8, 4)}
IMAGES = {"classes": (0, 1, 2), "shape": (1, 4, 4), "feature_range": (0, 1)}
KINDS = pytest.mark.parametrize("kind", [CLASSES, NUMBERS, IMAGES], ids=["classes", "numbers", "images"])


def asked(kind: dict[str, Any], columns: int = 6) -> tuple[neural.TableNetwork, NetworkUpdate, BodyUpdate]:
    """Return a model, its question of the second round as it arrives elsewhere, and the one of this process."""
    columns = 16 if "shape" in kind else columns
    model = neural.TableNetwork(math.inf, device="cpu", **kind)
    setup = model._round_setup(columns)
    state = public_start(setup.update) + 0.01
    query = NetworkUpdate(state, 1, model._described(setup.prefix, setup.head, columns))
    return model, arrived(query), BodyUpdate(state, 1, setup.executor, normalised=True)


def arrived(thing: Any) -> Any:
    """Return what a message says on the other side."""
    return wire.decode(wire.encode(thing))


def rows(kind: dict[str, Any], n: int = 12) -> tacitly.Cohort:
    rng = np.random.default_rng(0)
    offsets = np.concatenate([[0], np.cumsum(rng.integers(2, 9, size=n))])
    X = rng.uniform(0, 1, size=(offsets[-1], 16 if "shape" in kind else 6))
    y = rng.integers(0, len(kind["classes"]), len(X)) if "classes" in kind else rng.normal(size=len(X))
    return tacitly.Cohort.from_offsets(X, y.astype(float), offsets)


@KINDS
def test_what_arrives_elsewhere_asks_what_one_process_asks(kind: dict[str, Any]) -> None:
    model, query, local = asked(kind)
    cohort = rows(kind)
    seen = model.as_asked(cohort)
    assert query.coordinates == local.coordinates
    assert query.network.training() == model._training()
    expected = local.block_sum(seen.X, seen.y, seen.offsets, 0.5)
    assert np.allclose(query.block_sum(cohort.X, cohort.y, cohort.offsets, 0.5), expected, atol=1e-6)
    one = slice(0, int(cohort.offsets[1]))
    assert np.allclose(query.contribution(cohort.X[one], cohort.y[one]), local.contribution(seen.X[one], seen.y[one]))


ROWS = (0.5, 1e30, -1e30, 1e300, 1e-320, np.inf, np.nan)
TARGETS = (0.0, 1e9, -1e300, 0.5, np.inf, 1.0, np.nan)


@KINDS
def test_nobody_moves_a_sum_beyond_the_clip_and_nobody_moves_anothers_part(kind: dict[str, Any]) -> None:
    _, query, _ = asked(kind)
    cohort, (first, last) = rows(kind), (int(b) for b in rows(kind).offsets[1:3])
    bounds, without = np.array([0, last - first]), None
    for value, target in zip(ROWS, TARGETS, strict=True):
        X, y = cohort.X.copy(), cohort.y.copy()
        X[first:last], y[first:last] = value, target
        own = query.block_sum(X[first:last], y[first:last], bounds, 2.0)
        assert np.linalg.norm(own) <= 2.0
        assert np.linalg.norm(query.contribution(X[first:last], y[first:last])) <= 1.0
        total = query.block_sum(X, y, cohort.offsets, 2.0) - own
        without = total if without is None else without
        assert np.allclose(total, without, rtol=0, atol=1e-12)
    assert np.linalg.norm(own) == 0.0  # rows that are no numbers count as none
    usual = query.block_sum(cohort.X[first:last], cohort.y[first:last], bounds, 2.0)
    assert np.linalg.norm(usual) == pytest.approx(2.0)  # the sensitivity is attained


@KINDS
def test_only_the_rows_of_a_round_pass_the_public_part_and_one_user_of_a_gpu_at_a_time(
    kind: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks chooses the public part; a user's further rows made an answer late."""
    _, query, local = asked(kind)
    rng, seen, inside = np.random.default_rng(0), [], [False]
    X = rng.uniform(0, 1, size=(300, 16 if "shape" in kind else 6))
    y = rng.integers(0, 2, 300).astype(float)
    forward = query._seen._forward.or_none

    def passed(rows: Array) -> Array | None:
        seen.append((len(rows), inside[0]))
        return forward(rows)

    @contextlib.contextmanager
    def alone(self: NetworkUpdate) -> Iterator[None]:
        inside[0] = True
        yield
        inside[0] = False

    expected, whole = query.contribution(X, y), SeenRows(query.network, query._modules[0], torch.device("cpu"))
    assert np.allclose(local.contribution(*whole(X, y)), expected, atol=1e-6)
    monkeypatch.setattr(query._seen._forward, "or_none", passed)
    monkeypatch.setattr(NetworkUpdate, "_alone", alone)
    assert np.allclose(query.block_sum(X, y, np.array([0, 300]), 1.0), expected, atol=1e-5)
    assert seen == [(128, True)]


@pytest.mark.parametrize("mutation", ["not scaled", "scaled to twice the bound"])
def test_a_form_that_breaks_the_bound_is_refused_before_and_after_rows_are_read(mutation: str) -> None:
    class Wrong(NetworkUpdate):
        def block_sum(self, X: Any, y: Any, offsets: Any, bound: float) -> Array:
            if mutation != "not scaled":
                return super().block_sum(X, y, offsets, 2.0 * bound)
            users = [(X[a:b], y[a:b]) for a, b in itertools.pairwise(offsets)]
            return 1e6 * np.sum([self._asked.executor.one_update(self.public, *user, 1) for user in users], axis=0)

    _, query, _ = asked(NUMBERS)
    wrong = Wrong(query.public, 1, query.network)
    with pytest.raises(BoundExceeded):
        check_form(wrong, *synthetic_rows(6), 1.0)
    with pytest.raises(BoundExceeded):
        Shard(rows(NUMBERS, 1)).exact_sum(wrong, 1.0, 2.0**-40)


@KINDS
def test_heads_fitted_elsewhere_are_those_of_one_process(kind: dict[str, Any]) -> None:
    cohort = rows(kind, 40)
    model = neural.TableNetwork(8.0, rounds=1, device="cpu", **kind).fit(cohort)
    work = wire.decode(wire.encode(model.head_work()))
    found = work(cohort.X, cohort.y, cohort.offsets)
    assert found.shape[1:] == work.shape
    assert np.allclose(found, np.hstack([model.heads_, model.held_]), atol=1e-6)
    assert np.array_equal(
        work.own(np.full((2, cohort.n_features), np.nan), np.zeros(2))[: model.heads_.shape[1]], public(model)
    )


@pytest.mark.parametrize("kind", [CLASSES, NUMBERS], ids=["classes", "numbers"])
def test_one_users_head_needs_no_matrix_of_rows_by_rows(kind: dict[str, Any]) -> None:
    """30,000 rows of one user were 7 GB and hours at a site, and the coordinator saw who has them."""
    _, query, _ = asked(kind)
    X, y = np.random.default_rng(0).normal(size=(MANY, 6)), np.arange(MANY) % 2.0
    assert peak_per_row(NetworkHeads(query.public, query.network).own, X, y) < MANY / 10


def public(model: neural.TableNetwork) -> Array:
    parts = [value.detach().double().numpy().ravel() for value in model.public_head_.parameters()]
    return np.concatenate(parts)


def many(layout: str, columns: int = 6) -> dict[str, Any]:
    """Return a perceptron of this layout with the numbers that it needs."""
    return {"layout": layout, "columns": columns, "head": np.zeros((int(layout.split(",")[-1]) + 1) * 2)}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"columns": 0}, "columns"),
        ({"columns": 1 << 30}, "columns"),
        ({"outputs": 0}, "outputs"),
        ({"outputs": 10_001}, "outputs"),
        *(({"layout": text}, "layout") for text in ("", "0", "016", "16,-2", "1_6", " 16", "١٦", "1x4", "1x2x3x4")),
        ({"layout": ",".join(["2"] * 9)}, "layout"),
        (many("16385"), "units"),
        ({"layout": "1x4x4"}, "pixels"),
        ({"layout": "1x2x3"}, "square"),
        ({"low": 2.0, "high": 1.0}, "range"),
        ({"low": -math.inf}, "range"),
        ({"target_low": 2.0, "target_high": 1.0}, "range"),
        ({"target_high": math.nan}, "range"),
        ({"local_rate": math.nan}, "local_rate"),
        ({"local_rate": 0.0}, "local_rate"),
        ({"local_steps": 0}, "local_steps"),
        ({"local_steps": 1 << 40}, "times steps"),
        ({"head_steps": -1}, "head_steps"),
        ({"head_steps": 1 << 40}, "times steps"),
        (many("16384,16384"), "times steps"),
        (many("1,16384", columns=1 << 18) | {"head_steps": 1 << 20}, "times steps"),
        ({"head": np.zeros(3)}, "fixed numbers"),
        ({"frozen": np.zeros(3)}, "fixed numbers"),
        ({"layout": "5"}, "fixed numbers"),
    ],
)
def test_a_network_that_nobody_would_name_is_not_built(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        replace(asked(CLASSES)[1].network, **change)


def test_numbers_that_do_not_fit_their_network_are_not_built() -> None:
    _, query, _ = asked(CLASSES)
    for wrong in ({"public": query.public[1:]}, {"round_number": -1}, {"round_number": 1 << 70}):
        with pytest.raises(ValueError, match=r"learned numbers|round's number"):
            replace(query, **wrong)
    with pytest.raises(ValueError, match="learned numbers"):
        NetworkHeads(query.public[None], query.network)


def test_a_site_builds_nothing_for_rows_of_another_width(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, query, _ = asked(CLASSES, columns=7)
    node = Node("here", rows(CLASSES), tmp_path)
    monkeypatch.setattr(NamedNetwork, "modules", None)
    assert not node._fits(query)
    assert not node._fits(NetworkHeads(query.public, query.network))


def test_pixels_pass_the_filters_in_windows_of_bounded_memory() -> None:
    _, query, _ = asked(IMAGES)
    assert query.network.window == 128
    large = replace(query.network, layout="1x512x512", columns=512 * 512)
    assert large.window * 128 * 512 * 512 <= 1 << 26


def test_what_cannot_travel_is_refused_before_anything_is_asked_or_spent(tmp_path: Path) -> None:
    place = loopback(users(60), tmp_path)
    ledger = Ledger()
    for wrong, reason in (
        ({"classes": ("no", "yes")}, "labels must be the numbers 0 to 1 there"),
        ({"local_steps": 1 << 30}, "at most .* parameters times steps"),
    ):
        with pytest.raises(ValueError, match=reason):
            neural.TableNetwork(1.0, engine=place, ledger=ledger, **wrong).fit()
    assert not place.transport.asked
    assert not ledger.releases()
    with pytest.raises(ValueError, match="use a GPU without an engine"):
        neural.TableNetwork(1.0, engine="cuda").fit(np.zeros((4, 3)), np.zeros(4), np.arange(4))


def test_a_run_that_was_interrupted_goes_on_between_sites_and_asks_nothing_twice(tmp_path: Path) -> None:
    name = "network"
    place = loopback(users(60, name=name), tmp_path)
    model = EVERY[name][0].build(epsilon=8.0, **EVERY[name][1].parameters)

    def stop(release: str) -> None:
        raise KeyboardInterrupt

    model.set_params(engine=place, ledger=Ledger(tmp_path / "ledger"))
    with pytest.raises(KeyboardInterrupt):
        model.fit(on_release=stop)
    asked_before = len(place.transport.asked)
    model.set_params(ledger=Ledger(tmp_path / "ledger")).fit()
    assert len(place.transport.asked) - asked_before == 6  # three nodes: the second round, and heads
    assert promised(model) == promised(fit(name, users(60, name=name), epsilon=8.0))


SECRET = {"trust": "secure", "ceiling": Budget(epsilon=1e6, delta=1e-6)}


@pytest.mark.parametrize("name", ["network", "network, classes"])
def test_a_network_is_learned_from_masked_sums_and_certified(name: str, tmp_path: Path) -> None:
    place = loopback(users(60, name=name), tmp_path, **SECRET)
    model = fit(name, None, place, epsilon=8.0)
    assert model.certificate_.certified
    assert "masks it" in model.certificate_.trust
    assert {Ask.from_bytes(data).kind for _, data in place.transport.asked} == {"sum", "agree", "unmask", "heads"}
    for site in range(3):  # each accounts for what it spent, with the noise of a majority of the sites
        with Ledger(tmp_path / f"node{site}" / "node.ledger") as own:
            assert own.spent() == pytest.approx(model.certificate_.epsilon, rel=1e-6)


def test_a_masked_sum_of_updates_is_the_sum_in_one_process_and_each_answer_alone_is_uniform(tmp_path: Path) -> None:
    _, query, _ = asked(NUMBERS)
    cohort = users(60)
    place, seen = loopback(cohort, tmp_path, 5, **SECRET), []

    def note(node: int, answer: bytes) -> list[tuple[int, bytes]]:
        total = Answer.from_bytes(answer).total
        assert total is not None
        if len(total) > 2 * query.coordinates:  # an answer with shares, not a vote or a sum of shares
            seen.append(total[: query.coordinates])
        return [(node, answer)]

    place.transport.meddle = note
    event = GaussianEvent(sigma=1e-3, sensitivity=Sensitivity.of_clip(1.0, acute=False))
    federation = place.federation(Ledger().run("masked", config={}, certified=False))
    released = federation.release(query, event, "updates")
    exact = query.block_sum(cohort.X, cohort.y, cohort.offsets, 1.0)
    error = released - exact
    assert np.linalg.norm(exact) > 10.0
    # Normal noise of at most 2 · 1e-3: beyond eight deviations once in 1e13 draws of 92 numbers.
    assert np.abs(error).max() < 8 * federation.sum_sigma(event) < 0.016
    assert len(seen) == 5
    assert np.median(np.abs(np.array(seen, dtype=np.float64))) > 2.0**58  # far beyond any sum of 60 users


def test_masked_sums_of_a_network_survive_a_lost_site_and_an_interruption(tmp_path: Path) -> None:
    name = "network"
    place = loopback(users(60, name=name), tmp_path, 5, **SECRET)
    model = EVERY[name][0].build(epsilon=8.0, **EVERY[name][1].parameters)

    def stop(release: str) -> None:
        raise KeyboardInterrupt

    model.set_params(engine=place, ledger=Ledger(tmp_path / "ledger"))
    with pytest.raises(KeyboardInterrupt):
        model.fit(on_release=stop)
    del place.transport.nodes[14]  # four of five are left: enough, and certified as before
    model.set_params(ledger=Ledger(tmp_path / "ledger")).fit()
    assert promised(model) == promised(fit(name, users(60, name=name), epsilon=8.0))


def test_masked_answers_of_a_network_fit_into_what_a_coordinator_accepts(tmp_path: Path) -> None:
    options = {"classes": [0, 1, 2], "shape": [1, 4, 4]}
    cards = tuple(loopback(rows(IMAGES), tmp_path, 3, **SECRET).roster.values())
    settings = Settings(
        server="-", out="-", epsilon=1.0, method="networks", options=options, cards=cards, trust="secure"
    )
    assert 8 * hidden_size(asked(IMAGES)[1].coordinates, 3) < settings.longest_answer


def test_threads_that_leave_at_different_times_restore_the_number_of_threads() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        first, second = one_thread(), one_thread()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert torch.get_num_threads() == 1
        second.__exit__(None, None, None)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_site_fits_heads_offline_and_predicts_with_those_of_the_run(tmp_path: Path) -> None:
    name = "network, classes"
    cohort = users(60, name=name)
    model = fit(name, None, loopback(cohort, tmp_path), epsilon=8.0)
    published = tacitly.load(tacitly.save(model, tmp_path / "model"))
    site = tmp_path / "node0"
    mine = Node("node0", cohort.take(np.arange(20)), site).cohort
    mine.save(site / "cohort")
    for fresh in (False, True):
        if fresh:
            personalize(site, published)
        take_heads(site, published)
        assert len(published.users_) == 20
        predicted = published.predict(mine.X[:9], np.repeat(mine.users, np.diff(mine.offsets))[:9])
        assert set(predicted) <= set(EVERY[name][1].parameters["classes"])
