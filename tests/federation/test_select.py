"""The select door: exact odds on neighbours under both adjacencies, composed with noisy sums in one account."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from tacitly.audit.recording import Recording
from tacitly.data.cohort import Cohort
from tacitly.federation.base import Query
from tacitly.federation.bounds import BoundExceeded
from tacitly.federation.local import LocalFederation
from tacitly.federation.projected import Projected
from tacitly.federation.scores import Scores
from tacitly.privacy import accounting, noise, second_opinion
from tacitly.privacy.account import record
from tacitly.privacy.accounting import compose, delta_of, mixed_delta, mu_of, worst_losses
from tacitly.privacy.calibration import Phase, Plan
from tacitly.privacy.certificate import Certificate
from tacitly.privacy.guarantee import Adjacency, Budget, GaussianEvent, SelectionEvent, Sensitivity, Unit
from tacitly.privacy.ledger import BudgetExceeded, Ledger, LedgerMismatch
from tacitly.privacy.verification import verify

PURE = Budget(epsilon=1.0, delta=0.0)


@dataclass(frozen=True)
class Told(Scores):
    """A user's losses are the mean of its rows, so that a test can choose them."""

    candidates: int
    steps: int = 4

    @property
    def coordinates(self) -> int:
        return self.candidates

    def losses(self, X, y):  # type: ignore[no-untyped-def]
        return X.mean(axis=0)


def cohort(losses: np.ndarray) -> Cohort:
    rows = np.asarray(losses, dtype=np.float64)
    data = Cohort.from_offsets(np.zeros_like(rows), np.zeros(len(rows)), np.arange(len(rows) + 1))
    return replace(data, X=rows)  # bypasses the checks of a table, as a remote node can


def federation(losses: np.ndarray, **options: object) -> LocalFederation:
    return LocalFederation(cohort(losses), Ledger().run("test", config={}), threads=1, **options)  # type: ignore[arg-type]


def law(totals: np.ndarray, scale: float) -> np.ndarray:
    """Probabilities of permute-and-flip by its definition: over all orders, the first candidate that a coin accepts."""
    accept = np.exp(-(totals - totals.min()) / scale)
    chances = np.zeros(len(totals))
    orders = list(itertools.permutations(range(len(totals))))
    for order in orders:
        left = 1.0
        for candidate in order:
            chances[candidate] += left * accept[candidate] / len(orders)
            left *= 1.0 - accept[candidate]
    return chances


def odds(monkeypatch: pytest.MonkeyPatch, losses: np.ndarray, event: SelectionEvent) -> np.ndarray:
    """Log-odds of each candidate, from the totals and the scale that the door passes to the noise module."""
    seen: list[np.ndarray] = []

    def watch(totals, scale, mode, generator):  # type: ignore[no-untyped-def]
        assert mode == "exact"
        seen.append(np.log(law(totals, scale)))
        return 0

    monkeypatch.setattr(noise, "choose", watch)
    federation(losses).select(Told(losses.shape[1]), event, "choice")
    return seen[0]


def worst_ratio(monkeypatch: pytest.MonkeyPatch, event: SelectionEvent, adjacency: Adjacency) -> float:
    """Largest log-ratio over every neighbour of a few data sets: all users with losses in {0, ½, 1}."""
    worst = 0.0
    for candidates in (2, 3):
        everybody = [np.array(u) for u in itertools.product([0.0, 0.5, 1.0], repeat=candidates)]
        for others in ([[0.0] * candidates], [[0.0] + [1.0] * (candidates - 1)] * 3, [[0.5] * candidates] * 2):
            laws = [odds(monkeypatch, np.vstack([others, user]), event) for user in everybody]
            base = [laws[0]] if adjacency is Adjacency.ZERO_OUT else laws  # the first user adds nothing
            worst = max([worst, *(float(np.abs(one - other).max()) for one in base for other in laws)])
    return worst


@pytest.mark.parametrize("adjacency", Adjacency)
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_the_worst_log_ratio_is_epsilon_and_is_reached(
    monkeypatch: pytest.MonkeyPatch, adjacency: Adjacency, epsilon: float
) -> None:
    event = SelectionEvent.of_epsilon(epsilon, adjacency)
    worst = worst_ratio(monkeypatch, event, adjacency)
    assert 0.95 * epsilon <= worst <= epsilon * (1 + 1e-9)
    assert event.epsilon(adjacency) <= epsilon


def test_leaving_out_the_half_under_replace_one_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    forgotten = SelectionEvent.of_epsilon(1.0, Adjacency.ZERO_OUT)
    assert worst_ratio(monkeypatch, forgotten, Adjacency.REPLACE_ONE) > 1.9


def test_what_is_drawn_has_the_odds_of_the_definition() -> None:
    """Four totals, both ways of drawing; false-alarm rate 1e-7, of the one whose draws have no seed."""
    totals, scale, draws = np.array([7, 3, 5, 4]), 2.5, 8_000
    expected = draws * law(totals, scale)
    generator = np.random.default_rng(0)
    for mode in ("exact", "seeded"):
        found = np.bincount([noise.choose(totals, scale, mode, generator) for _ in range(draws)], minlength=4)
        assert stats.chisquare(found, expected).pvalue > 1e-7
        wrong = draws * law(totals, 1.6 * scale)
        assert stats.chisquare(found, wrong).pvalue < 1e-6


def test_totals_beyond_float_precision_are_told_apart() -> None:
    totals = np.array([2**62 + 1, 2**62, 2**62 + 1])
    assert {noise.choose(totals, 0.01, "exact") for _ in range(50)} == {1}


@pytest.mark.parametrize("steps", [3, 7, 10])
def test_multiples_of_one_over_m_add_up_exactly(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    losses = np.random.default_rng(0).integers(0, steps + 1, size=(3000, 5))
    seen = []
    monkeypatch.setattr(noise, "choose", lambda totals, *_: seen.append(totals) or 0)
    federation(losses / steps).select(Told(5, steps), SelectionEvent(scale=1.0), "choice")
    assert seen[0].dtype == np.int64
    np.testing.assert_array_equal(seen[0], losses.sum(axis=0))


@pytest.mark.parametrize("bad", [[math.nan, 0.0], [math.inf, 1.0], [1e300, -1e300], [-5.0, 7.0], [-math.inf, 0.3]])
def test_no_user_moves_a_total_by_more_than_one_or_below_zero(
    monkeypatch: pytest.MonkeyPatch, bad: list[float]
) -> None:
    seen = []
    monkeypatch.setattr(noise, "choose", lambda totals, *_: seen.append(totals) or 0)
    for losses in ([[0.25, 0.5]], [[0.25, 0.5], bad]):
        federation(np.array(losses)).select(Told(2), SelectionEvent(scale=1.0), "choice")
    moved = seen[1] - seen[0]
    assert moved.min() >= 0
    assert moved.max() <= 4  # steps


@dataclass(frozen=True)
class Unbounded(Told):
    """Mutation: does not clamp losses."""

    def whole(self, losses):  # type: ignore[no-untyped-def]
        return np.rint(losses * self.steps)


def test_a_loss_that_is_not_bounded_is_caught() -> None:
    door = federation(np.array([[0.25, 0.5], [-5.0, 7.0]]))
    with pytest.raises(BoundExceeded, match="synthetic rows"):
        door.select(Unbounded(2), SelectionEvent(scale=1.0), "choice")
    assert door.ledger_run.releases == []


@dataclass(frozen=True)
class Fails(Told):
    """A user whose numbers break the computation."""

    def losses(self, X, y):  # type: ignore[no-untyped-def]
        if X[0, 0] > 2:
            raise RuntimeError("private")
        return super().losses(X, y)


def test_a_user_whose_losses_cannot_be_computed_adds_nothing_and_nothing_is_said() -> None:
    data = np.array([[0.0, 1.0], [9.0, 0.0]])
    assert federation(data).select(Fails(2), SelectionEvent(scale=0.01), "choice") == 0


def test_a_choice_is_debited_before_it_is_drawn_and_read_on_resuming(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, event = np.array([[0.0, 1.0, 1.0]] * 50), SelectionEvent.of_epsilon(1.0, Adjacency.ZERO_OUT)
    path = tmp_path / "account"

    def dies(*_: object) -> int:
        with Ledger(path) as other:
            assert [row.state for row in other.releases()] == ["debited"]
        raise KeyboardInterrupt

    with Ledger(path, ceiling=PURE) as ledger, monkeypatch.context() as patch:
        patch.setattr(noise, "choose", dies)
        with pytest.raises(KeyboardInterrupt):
            LocalFederation(cohort(data), ledger.run("fit", config={})).select(Told(3), event, "choice")
    with Ledger(path) as ledger:
        chosen = LocalFederation(cohort(data), ledger.run("fit", config={})).select(Told(3), event, "choice")
        assert chosen == 0
        assert ledger.spent() == 1.0
    with Ledger(path) as ledger, monkeypatch.context() as patch:
        patch.setattr(noise, "choose", lambda *_: pytest.fail("drawn again"))
        run = ledger.run("fit", config={})
        again = LocalFederation(cohort(data), run)
        assert again.select(Told(3), event, "choice") == chosen
        with pytest.raises(BudgetExceeded):
            again.select(Told(3), event, "a second one")


def test_a_plan_of_choices_is_compared_with_what_was_chosen() -> None:
    event = SelectionEvent.of_epsilon(0.5, Adjacency.ZERO_OUT)
    other = GaussianEvent(sigma=2.0, sensitivity=Sensitivity.of_clip(1.0))
    for planned, ok in (([event], True), ([SelectionEvent(scale=4.0)], False), ([other], False)):
        run = Ledger().run("fit", config={}, planned=planned)
        LocalFederation(cohort(np.zeros((4, 2))), run).select(Told(2), event, "choice")
        if ok:
            run.finish()
        else:
            with pytest.raises(LedgerMismatch, match="must release exactly the"):
                run.finish()


@dataclass(frozen=True)
class Stepped(Query):
    """An ordinary query that has a field called ``steps``."""

    steps: int = 4

    @property
    def coordinates(self) -> int:
        return 2

    def contribution(self, X, y):  # type: ignore[no-untyped-def]
        return X.sum(axis=0)


def test_losses_do_not_pass_the_first_door_and_nothing_else_the_second() -> None:
    """Losses are not clipped, and contributions are not clamped per coordinate, so each door refuses the other kind."""
    event = GaussianEvent(sigma=1.0, sensitivity=Sensitivity.of_clip(1.0))
    data = np.ones((4, 2))
    ways = [
        lambda door: door.release(Told(2), event, "sum"),
        lambda door: door.release(Projected(Told(2), np.eye(2)), event, "sum"),
        lambda door: door.projected(np.eye(2)).release(Told(2), event, "sum"),
        lambda door: door.release_each([Projected(Told(2), np.eye(2))] * 4, event, "each"),
        lambda door: door.release_each([Told(2)] * 4, event, "each"),
        lambda door: door.release_each([Stepped(), Stepped(), Told(2), Stepped()], event, "each"),
        lambda door: door.release_in_turns(lambda out: Told(2), 2, event, "turns"),
        lambda door: door.release_in_turns(lambda out: Told(2) if out else Stepped(), 2, event, "turns"),
    ]
    for way in ways:
        with pytest.raises(ValueError, match="go through select only"):
            way(federation(data))
    assert federation(data).release(Stepped(), event, "sum").shape == (2,)
    with pytest.raises(ValueError, match="a Scores query"):
        federation(data).select(Stepped(), SelectionEvent(scale=1.0), "choice")


@dataclass(frozen=True)
class Single(Told):
    """Losses in single precision."""

    steps: int = 720_720

    def block_losses(self, X, y, offsets):  # type: ignore[no-untyped-def]
        return super().block_losses(X, y, offsets).astype(np.float32)


def test_losses_in_single_precision_add_up_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(noise, "choose", lambda totals, *_: seen.append(totals) or 0)
    losses = np.full((1000, 2), 0.9999)
    for last in ([0.0, 0.0], [1.0, 1.0]):
        losses[-1] = last
        federation(losses).select(Single(2), SelectionEvent(scale=1.0), "choice")
    assert (seen[1] - seen[0]).tolist() == [720_720, 720_720]


@dataclass(frozen=True)
class Misshapen(Stepped):
    """A user whose numbers change the shape or the type of the result."""

    def block_sum(self, X, y, offsets, bound):  # type: ignore[no-untyped-def]
        if X.max() > 3:
            return np.array(["private"] * 2) if X.max() > 5 else np.zeros(3)
        return super().block_sum(X, y, offsets, bound)


@pytest.mark.parametrize("bad", [4.0, 9.0])
def test_a_user_whose_sum_has_another_shape_adds_nothing_and_nothing_is_said(bad: float) -> None:
    event = GaussianEvent(sigma=1e-6, sensitivity=Sensitivity.of_clip(1.0))
    found = federation(np.array([[0.0, 0.5], [bad, 0.0]])).release(Misshapen(), event, "sum")
    np.testing.assert_allclose(found, [0.0, 0.5], atol=1e-4)


def test_rows_seen_through_two_objects_never_share_noise() -> None:
    """A seed makes one generator per release; a projected view of the same users shares the counter."""
    event = GaussianEvent(sigma=1.0, sensitivity=Sensitivity.of_clip(1.0))
    run = Ledger().run("test", config={}, certified=False)
    door = LocalFederation(cohort(np.zeros((4, 2))), run, noise_seed=3, threads=1)
    other = door.projected(np.eye(2))
    first, second = door.release(Stepped(), event, "one"), other.release(Stepped(), event, "two")
    third = door.release(Stepped(), event, "three")
    assert len({*first.tolist(), *second.tolist(), *third.tolist()}) == 6


def test_a_choice_among_more_candidates_is_another_release(tmp_path: Path) -> None:
    with Ledger(tmp_path / "account") as ledger:
        run = ledger.run("fit", config={})
        LocalFederation(cohort(np.zeros((4, 2))), run).select(Told(2), SelectionEvent(scale=1.0), "choice")
    with Ledger(tmp_path / "account") as ledger:
        again = LocalFederation(cohort(np.zeros((4, 3))), ledger.run("fit", config={}))
        with pytest.raises(LedgerMismatch, match="another program"):
            again.select(Told(3), SelectionEvent(scale=1.0), "choice")


def test_a_tape_hears_what_a_choice_asks() -> None:
    recording = Recording()
    LocalFederation(cohort(np.zeros((4, 2))), recording.run("fit", config={})).select(  # type: ignore[arg-type]
        Told(2), SelectionEvent(scale=1.0), "choice"
    )
    assert recording.entries[0].queries == (Told(2),)


def test_what_a_choice_cannot_promise_is_refused() -> None:
    data = np.zeros((4, 2))
    event = SelectionEvent(scale=1.0)
    with pytest.raises(ValueError, match="needs trust 'central'"):
        federation(data, trust="local").select(Told(2), event, "choice")
    rows = replace(event, sensitivity=replace(event.sensitivity, unit=Unit.ROW))
    with pytest.raises(ValueError, match="protects whole users"):
        federation(data).select(Told(2), rows, "choice")
    with pytest.raises(ValueError, match="for an exact sum"):
        federation(data).select(Told(2, 2**52), event, "choice")
    with pytest.raises(ValueError, match="moves them by 1 or 2"):
        SelectionEvent(scale=1.0, sensitivity=Sensitivity.of_clip(0.5))
    with pytest.raises(ValueError, match="coordinates"):
        federation(data).select(Told(3), event, "choice")


def certified(budget: Budget, choices: int, sums: int = 0) -> tuple[Certificate, Ledger]:
    phases = [Phase(name="sums", share=1.0, releases=sums)] if sums else []
    each = budget.epsilon * (0.3 if sums else 1.0) / choices
    plan = Plan(budget, phases, choices=[each] * choices)
    ledger = Ledger(ceiling=budget)
    run = ledger.run("fit", config={})
    data = federation(np.zeros((9, 2)))
    data.ledger_run = run
    for number in range(choices):
        data.select(Told(2), plan.choice(number), f"choice {number}")
    for number in range(sums):
        event = replace(plan.event("sums", clip=1.0), slack=0.0)
        run.release(f"sum {number}", event, lambda: np.zeros(1), noise="float", grid=0.0, coordinates=1)
    run.finish()
    claim = Certificate(
        algorithm="test",
        mode="certified",
        budget=budget,
        releases=tuple(run.releases),
        n_users=9,
        trust="central",
        files={"billboard.safetensors": "0" * 64},
    )
    return record(claim, ledger, "fit"), ledger


@pytest.mark.parametrize("adjacency", Adjacency)
@pytest.mark.parametrize(("choices", "sums"), [(1, 0), (3, 0), (1, 4), (5, 2)])
def test_choices_alone_certify_pure_epsilon_and_beside_sums_what_was_asked_for(
    adjacency: Adjacency, choices: int, sums: int
) -> None:
    budget = Budget(epsilon=1.0, delta=1e-6 if sums else 0.0, adjacency=adjacency)
    claim, ledger = certified(budget, choices, sums)
    assert claim.epsilon == pytest.approx(1.0, rel=1e-6)
    assert claim.epsilon <= 1.0 + 1e-12
    if not sums:
        ratio = 2.0 if adjacency is Adjacency.ZERO_OUT else 0.5
        assert "at δ = 0" in str(claim)
        other = claim.epsilon_replace_one if ratio == 2.0 else claim.epsilon_zero_out
        assert other == pytest.approx(ratio)
    verdict = verify(claim.to_json(), ledger=ledger)
    assert verdict.ok, verdict
    assert Certificate.from_json(claim.to_json()) == claim


@pytest.mark.parametrize(
    ("path", "value", "check"),
    [
        (("event", "scale"), 2.0, "epsilon"),
        (("event", "sensitivity", "replace_one"), 1.0, "sensitivity"),
        (("noise",), "float", "selection"),
        (("noise",), "none", "marking"),
        (("coordinates",), 7, "digest"),
        (("event", "mechanism"), "gaussian", "well-formed"),
        (("event", "mechanism"), "laplace", "well-formed"),
        (("event", "sigma"), 1.0, "well-formed"),
    ],
)
def test_an_edited_choice_is_caught(path: tuple[str, ...], value: object, check: str) -> None:
    claim, _ = certified(PURE, 1)
    data = json.loads(claim.to_json())
    place = data["releases"][0]
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    assert check in verify(json.dumps(data)).failed


def test_a_noisy_sum_has_no_pure_epsilon() -> None:
    gaussian = GaussianEvent(sigma=100.0, sensitivity=Sensitivity.of_clip(1.0))
    assert compose([gaussian, SelectionEvent(scale=1.0)], Adjacency.ZERO_OUT, 0.0) == math.inf
    with pytest.raises(ValueError, match="no pure epsilon"):
        Plan(PURE, [Phase(name="sums", share=1.0)])
    with pytest.raises(ValueError, match="leave some of it for noisy sums"):
        Plan(Budget(epsilon=1.0, delta=1e-6), [Phase(name="sums", share=1.0)], choices=[0.6, 0.4])


@pytest.mark.parametrize("mu", [0.0, 0.05, 0.4, 2.0])
@pytest.mark.parametrize("pure", [[0.3], [0.1] * 7, [1.0, 0.2, 0.05]])
@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-2])
def test_both_accountants_and_loss_distributions_agree_on_mixtures(mu: float, pure: list[float], delta: float) -> None:
    gaussian = [GaussianEvent(sigma=1 / mu, sensitivity=Sensitivity.of_clip(1.0))] if mu else []
    events = [*gaussian, *(SelectionEvent(scale=1 / epsilon) for epsilon in pure)]
    rows = [{"event": e.to_dict(), "noise": "exact", "grid": 0.0, "coordinates": 1} for e in events]
    closed = compose(events, Adjacency.ZERO_OUT, delta)
    assert second_opinion.epsilon_of(rows, "zero-out", delta) == pytest.approx(closed, rel=1e-6, abs=1e-8)
    if closed > 0.01:
        numeric = second_opinion.numeric_epsilon(rows, "zero-out", delta, near=closed)
        assert numeric == pytest.approx(closed, rel=0.01)
    assert closed <= sum(pure) + compose(gaussian, Adjacency.ZERO_OUT, delta) + 1e-9


def test_the_mixture_is_the_mean_of_the_profile_over_losses() -> None:
    """Against direct integration of the privacy loss: L = Z·μ + μ²/2 ± ε."""
    mu, epsilon, at = 0.7, 0.4, 1.1
    z = np.linspace(-12, 12, 400_001)
    weight = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi) * (z[1] - z[0])
    truth = 0.0
    for sign, chance in ((1, 1 / (1 + math.exp(-epsilon))), (-1, 1 / (1 + math.exp(epsilon)))):
        loss = mu * z + mu**2 / 2 + sign * epsilon
        truth += chance * float(np.sum(weight * np.maximum(0.0, -np.expm1(at - loss))))
    assert mixed_delta(mu, worst_losses([epsilon]), at) == pytest.approx(truth, rel=1e-6)
    assert delta_of(mu, -0.5) == pytest.approx(1 - math.exp(-0.5) * (1 - delta_of(mu, 0.5)))


def test_many_different_choices_are_never_charged_too_little() -> None:
    pure = list(np.linspace(0.011, 0.0297, 40))
    exact_mean = sum(p * math.tanh(p / 2) for p in pure)  # mean of the summed loss
    losses, chances = worst_losses(pure)
    assert len(losses) <= 50_000
    assert chances.sum() == pytest.approx(1.0)
    assert (chances * np.exp(-losses)).sum() == pytest.approx(1.0)
    mean = float(losses @ chances)
    assert exact_mean <= mean <= exact_mean + 0.01


@pytest.mark.parametrize(
    ("choices", "delta"), [([1.0 / 80] * 80, 0.0), ([0.001] * 1000, 1e-6), ([0.01] * 1100, 1e-6), ([800.0], 1e-6)]
)
def test_certificates_of_many_choices_verify(choices: list[float], delta: float) -> None:
    budget = Budget(epsilon=math.fsum(choices) * (1 + 1e-12), delta=delta)
    run = Ledger().run("fit", config={})
    for number, epsilon in enumerate(choices):
        event = SelectionEvent.of_epsilon(epsilon, Adjacency.ZERO_OUT)
        run.release(f"choice {number}", event, lambda: np.zeros(1), noise="exact", grid=0.25, coordinates=2)
    run.finish()
    claim = Certificate(
        algorithm="test", mode="certified", budget=budget, releases=tuple(run.releases), n_users=9, trust="central"
    )
    verdict = verify(claim.to_json())
    assert verdict.ok, verdict


def test_different_choices_are_added_up_once_a_profile() -> None:
    """Twelve ε have 4096 sums; enumerating all of them at every step of a search took twelve seconds."""
    events = [SelectionEvent(scale=1 / epsilon) for epsilon in np.linspace(0.05, 0.1, 12)]
    rows = [{"event": e.to_dict(), "noise": "exact", "grid": 0.0, "coordinates": 1} for e in events]
    second_opinion._outcomes.cache_clear()
    found = second_opinion.epsilon_of(rows, "zero-out", 1e-6)
    assert second_opinion._outcomes.cache_info().misses == 1
    assert found == pytest.approx(compose(events, Adjacency.ZERO_OUT, 1e-6), rel=1e-9)


def test_what_is_put_on_a_grid_is_overstated_by_next_to_nothing() -> None:
    pure = list(np.linspace(0.05, 0.1, 12))
    exact, few = worst_losses(pure), [float(x) for x in np.linspace(0.1, 0.9, 9)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accounting, "_MOST_LOSSES", 1000)
        rough = worst_losses(pure)
        assert rough[0].size == 1000
    for epsilon in few:
        least = mixed_delta(0.1, exact, epsilon)
        assert least <= mixed_delta(0.1, rough, epsilon) * (1 + 1e-12) <= least * 1.001


@pytest.mark.parametrize("epsilon", [1e299, 1e308])
def test_absurd_choices_do_not_overflow(epsilon: float) -> None:
    events = [SelectionEvent(scale=1 / epsilon)] * 2
    gaussian = GaussianEvent(sigma=1.0, sensitivity=Sensitivity.of_clip(1.0))
    for delta in (0.0, 1e-6):
        assert compose(events, Adjacency.ZERO_OUT, delta) >= 2 * epsilon
    assert compose([gaussian, *events], Adjacency.ZERO_OUT, 1e-6) >= 2 * epsilon


def test_choices_beyond_the_budget_are_refused_whether_or_not_there_are_sums() -> None:
    for delta in (0.0, 1e-6):
        with pytest.raises(ValueError, match="at most epsilon = 1"):
            Plan(Budget(epsilon=1.0, delta=delta), [], choices=[5.0, 5.0])
    assert Plan(PURE, [], choices=[0.1] * 10).choices == (0.1,) * 10
    with pytest.raises(ValueError, match="leave too little"):
        mu_of(1.0, 1e-16, [1.0 - 1e-15])
    assert 0 < mu_of(1.0, 1e-6, [1.0 - 2**-40]) < 1e-3


def test_no_privacy_needs_no_delta() -> None:
    plan = Plan(Budget(epsilon=math.inf, delta=0.0), [Phase(name="sums", share=1.0)])
    assert not plan.event("sums", clip=1.0).private


def test_what_choices_leave_is_spent_on_sums_exactly() -> None:
    mu = mu_of(1.0, 1e-6, [0.2, 0.2])
    assert mixed_delta(mu, worst_losses([0.2, 0.2]), 1.0) == pytest.approx(1e-6, rel=1e-6)
    assert mu_of(0.6, 1e-6) < mu < mu_of(1.0, 1e-6)


def test_a_seeded_choice_protects_nothing() -> None:
    run = Ledger().run("test", config={}, certified=False)
    fed = LocalFederation(cohort(np.zeros((4, 2))), run, noise_seed=0)
    fed.select(Told(2), SelectionEvent(scale=1.0), "choice")
    assert not run.releases[0].cost.private
