"""A coordinator that deviates from the protocol, against nodes that follow it."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engines import users
from loopback import loopback
from tacitly.federation import wire
from tacitly.federation.flower import masks
from tacitly.federation.flower.kept_heads import read_heads
from tacitly.federation.flower.messages import Answer, Ask
from tacitly.federation.flower.node import Node
from tacitly.federation.projected import Projected
from tacitly.heads.base import HeadWork
from tacitly.heads.glm import LossHeads
from tacitly.heads.losses import Loss
from tacitly.heads.ridge import RidgeHeads
from tacitly.linalg import orthonormal
from tacitly.methods.altmin.queries import NormalEquations
from tacitly.methods.fedpower.gram import CentreVote, ShiftedGram
from tacitly.methods.fedpower.power import DeviceStep, PowerStep
from tacitly.methods.fedrep.queries import BasisStep, LossStep
from tacitly.methods.low_rank_sparse.as_printed import ClippedRight, Clips
from tacitly.methods.low_rank_sparse.heads import SparseHeadWork, Sparsity
from tacitly.methods.low_rank_sparse.queries import SparseEquations, SparseStep
from tacitly.methods.margin.queries import MarginLosses
from tacitly.methods.shared.direction_votes import DirectionVote
from tacitly.methods.shared.norm_histogram import NormHistogram
from tacitly.methods.shared.whitening import FeatureMoment, Whitening
from tacitly.methods.trace_regression.centering import LabelSum, ObservationSum
from tacitly.methods.trace_regression.curvature import StepEnergy
from tacitly.methods.trace_regression.designs import Centre, Design
from tacitly.methods.trace_regression.queries import DesignEnergy, LabelledSum, Scales, TangentSum
from tacitly.privacy.guarantee import Budget, Unit

D, GRID = 6, 2.0**-44


def forged(kind: type, *values: Any) -> Any:
    """Build an object without running its checks, as an attacker who writes bytes can; defaults for what is left."""
    made = object.__new__(kind)
    fields = dataclasses.fields(kind)
    for field, value in itertools.zip_longest(fields, values, fillvalue=dataclasses.MISSING):
        object.__setattr__(made, field.name, field.default if value is dataclasses.MISSING else value)
    return made


def basis(d: int = D, k: int = 2) -> np.ndarray:
    return orthonormal(np.random.default_rng(0).normal(size=(d, k)))[0]


def white(d: int = D, gains: int = 2, scales: int | None = None, size: float = 1.0) -> Whitening:
    return forged(Whitening, np.ones(d if scales is None else scales), size * basis(d), np.full(gains, 0.5))


METRIC = np.eye(2)
DENSE, SCALES = Design("dense", 2, 3), Scales(np.ones(2), np.ones(3))
TASKS, POINT = Design("tasks", 2, 3), Centre(np.ones((1, 1)))
NEGATIVE = forged(Sparsity, -5, False)
CLIPS = Clips(rows=1.0, targets=1.0, sparse_part=1.0, weights=1.0, count=5)
ILL_FITTING = {
    "gram of one column, rows": forged(ShiftedGram, np.ones(1), 1.0, Unit.ROW),
    "gram of one column, users": forged(ShiftedGram, np.ones(1), 1.0, Unit.USER),
    "gram of many columns": forged(ShiftedGram, np.ones(500), 1.0, Unit.ROW),
    "centre of one column": forged(CentreVote, np.ones(1), 1.0, Unit.USER),
    "centre of no column": forged(CentreVote, np.ones(0), 1.0, Unit.ROW),
    "centre of many columns": forged(CentreVote, np.ones(10**5), 1.0, Unit.ROW),
    "power step around one column": forged(PowerStep, basis(), np.ones(1), 1.0, Unit.ROW),
    "basis of few columns": forged(BasisStep, basis(3), METRIC, 1.0, white(3), False),
    "basis of many columns": forged(BasisStep, basis(5000), METRIC, 1.0, white(5000), False),
    "small metric": forged(BasisStep, basis(), np.eye(1), 1.0, white(), False),
    "few gains": forged(BasisStep, basis(), METRIC, 1.0, white(gains=1), False),
    "many gains": forged(BasisStep, basis(), METRIC, 1.0, white(gains=10**5), False),
    "one scale": forged(BasisStep, basis(), METRIC, 1.0, white(scales=1), False),
    "directions that are not orthonormal": forged(BasisStep, basis(), METRIC, 1.0, white(size=100.0), False),
    "negative gain": DirectionVote(forged(Whitening, np.ones(D), basis(), np.array([-3.0, 0.1]))),
    "scale of zero": DirectionVote(forged(Whitening, np.zeros(D), basis(), np.ones(2))),
    "votes of many columns": forged(DirectionVote, white(400), False, 0),
    "votes of more rows than any": forged(DirectionVote, white(), False, 10**9),
    "moment of few columns": FeatureMoment(3),
    "moment of many columns": FeatureMoment(100),
    "moment of columns without end": forged(FeatureMoment, 10**12, False, 0),
    "moment of fewer than no columns": forged(FeatureMoment, -7, False, 0),
    "equations in two shapes": forged(NormalEquations, basis(3), white(), 1.0, 1.0, "both"),
    "equations of an unknown part": forged(NormalEquations, basis(), white(), 1.0, 1.0, "all"),
    "steps without end": forged(DeviceStep, basis(), 10**9, "procrustes"),
    "histogram without end": forged(NormHistogram, FeatureMoment(D), 10**9),
    "norms of what does not fit": NormHistogram(forged(ShiftedGram, np.ones(1), 1.0, Unit.ROW)),
    "sparse step of few columns": forged(SparseStep, basis(3), METRIC, 1.0, white(3), False, Sparsity(1), False, 2),
    "sparse step of many": forged(SparseStep, basis(5000), METRIC, 1.0, white(5000), False, Sparsity(1), False, 2),
    "more coordinates than columns": forged(SparseStep, basis(), METRIC, 1.0, white(), False, Sparsity(50), False, 2),
    "fewer than no coordinates": forged(SparseStep, basis(), METRIC, 1.0, white(), False, NEGATIVE, False, 2),
    "shared weights of two": forged(SparseStep, basis(), METRIC, 1.0, white(), False, Sparsity(1), True, 2),
    "norms of a sparse step": NormHistogram(
        forged(SparseStep, basis(3), METRIC, 1.0, white(3), False, Sparsity(1), False, 2)
    ),
    "sparse equations": forged(SparseEquations, basis(3), white(3), Sparsity(1), 1.0, 1.0, "both", False, False, 2),
    "printed equations": forged(ClippedRight, basis(3), Sparsity(1), CLIPS, False),
    "loss step of few columns": forged(LossStep, basis(3), METRIC, 1.0, white(3), Loss("hinge"), False),
    "loss step with a small metric": forged(LossStep, basis(), np.eye(1), 1.0, white(), Loss("hinge"), False),
    "loss step of many gains": forged(LossStep, basis(), METRIC, 1.0, white(gains=10**5), Loss("hinge"), False),
    "trace of another shape": forged(DesignEnergy, Design("dense", 5, 5), Unit.ROW, None),
    "tasks of another shape": forged(DesignEnergy, Design("tasks", 3, 900), Unit.ROW, None),
    "entries of many columns": forged(DesignEnergy, Design("entries", 3, 900), Unit.USER, None),
    "few values": forged(TangentSum, DENSE, SCALES, basis(2), basis(3), np.ones(1), "both", 0.0, 1.0, Unit.ROW, None),
    "long factors": forged(TangentSum, DENSE, SCALES, basis(9), basis(9), np.ones(2), "both", 0.0, 1.0, Unit.ROW, None),
    "few scales": forged(LabelledSum, DENSE, forged(Scales, np.ones(1), np.ones(1)), Unit.ROW, None),
    "energy of long factors": forged(StepEnergy, DENSE, basis(9), basis(9), 1.0, Unit.ROW, None),
    "swaps without end": forged(SparseStep, basis(), METRIC, 1.0, white(), False, Sparsity(1), False, 10**15),
    "sum from a centre of one number": forged(ObservationSum, DENSE, Unit.ROW, POINT),
    "sum of another shape": forged(ObservationSum, Design("dense", 5, 5), Unit.ROW, None),
    "sum of tasks": forged(ObservationSum, Design("tasks", 3, 5), Unit.ROW, None),
    "labels of users": forged(LabelSum, Unit.USER),
    "energy from a centre of one number": forged(DesignEnergy, DENSE, Unit.ROW, POINT),
    "energy along, from one number": forged(StepEnergy, DENSE, basis(2), basis(3), 1.0, Unit.ROW, POINT),
    "labelled, from one number": forged(LabelledSum, DENSE, SCALES, Unit.ROW, POINT),
    "labelled tasks from a centre": forged(
        LabelledSum, Design("tasks", 2, 3), SCALES, Unit.ROW, Centre(np.ones((2, 3)))
    ),
    "tangent from one number": forged(
        *(TangentSum, DENSE, SCALES, basis(2), basis(3), np.ones(2), "both", 0.0, 1.0, Unit.ROW, POINT)
    ),
    "projection of few columns": forged(Projected, FeatureMoment(2), np.ones((2, 3))),
    "projection to other columns": forged(Projected, FeatureMoment(4), np.ones((2, D))),
    "projection without end": forged(Projected, FeatureMoment(D), np.ones((10**4, D))),
    "losses": MarginLosses(np.ones((2, D, 1)), np.ones((1, 1)), 0.1),
    "sparse heads of few columns": forged(SparseHeadWork, basis(3), Sparsity(1), False, False),
    "sparse heads with many coordinates": forged(SparseHeadWork, basis(), Sparsity(10**5), False, False),
    "loss heads of few columns": forged(LossHeads, basis(3), Loss("hinge"), False, False),
    "loss heads of many columns": forged(LossHeads, basis(10**4), Loss("hinge"), False, False),
    "heads of few columns": forged(RidgeHeads, basis(3), False),
    "heads of many columns": forged(RidgeHeads, basis(10**4), False),
    "heads of one direction only": forged(RidgeHeads, np.ones(D), False),
}


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> list[Node]:
    ceiling = Budget(epsilon=5.0, delta=1e-6)
    made = []
    for trust in ("central", "node"):
        folder = tmp_path_factory.mktemp(trust)
        made.append(Node("n", users(100), folder, trust=trust, threads=1, ceiling=ceiling))
    return made


@pytest.mark.parametrize("name", ILL_FITTING)
def test_what_does_not_fit_a_nodes_rows_is_refused_before_anything_compiled_runs(name: str, nodes: list[Node]) -> None:
    thing = ILL_FITTING[name]
    kind = "heads" if isinstance(thing, HeadWork) else "sum"
    for node, noise in zip(nodes, ({}, {"sigma": 30.0, "noise": "float"}), strict=True):
        ask = Ask(kind=kind, run="r", step="1.0", token="t", thing=wire.encode(thing), grid=GRID, **noise)
        answer = Answer.from_bytes(node.answer(ask.to_bytes()))
        assert answer.code in ("refused", "malformed")
        assert answer.total is None
        assert not (node._folder / "heads.npz").exists()


def test_a_node_that_adds_noise_enforces_the_clip_it_charges_for(tmp_path: Path) -> None:
    """Whatever numbers a query holds, no user contributes more than the clip."""
    node = Node("n", users(100), tmp_path, trust="node", threads=1, ceiling=Budget(epsilon=1.0, delta=1e-6))
    query = FeatureMoment(D)
    object.__setattr__(query, "block_sums", lambda X, y, offsets, bound, size: np.full((1, query.coordinates), 1e3))
    one = np.zeros(100, dtype=bool)
    one[0] = True
    ask = Ask(kind="sum", run="r", step="1.0", token="t", thing=b"", grid=GRID, chosen=one)
    assert np.linalg.norm(node._exact(ask, query) * GRID) <= 1.0


def test_a_query_that_is_not_clipped_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node("n", users(30), tmp_path, trust="central", threads=1)
    ask = Ask(kind="sum", run="r", step="1.0", token="t", thing=wire.encode(FeatureMoment(D)), grid=GRID)
    assert Answer.from_bytes(node.answer(ask.to_bytes())).code == "ok"
    monkeypatch.setattr(FeatureMoment, "clipped", False)
    assert Answer.from_bytes(node.answer(ask.to_bytes())).code == "refused"


@pytest.fixture
def group(tmp_path: Path) -> dict[int, Node]:
    return loopback(users(60), tmp_path, trust="secure", ceiling=Budget(epsilon=5.0, delta=1e-6)).transport.nodes


def asked(**changed: Any) -> Ask:
    names = tuple(f"node{i}" for i in range(3))
    told = {"kind": "sum", "run": "r", "step": "1.0", "token": "t", "thing": wire.encode(FeatureMoment(D))}
    told |= {"group": names, "honest": 2, "noise": "exact", "sigma": 30.0, "bound": 1.0, "grid": GRID}
    return Ask(**told | changed)


def total_of(node: Node, ask: Ask) -> np.ndarray:
    answer = Answer.from_bytes(node.answer(ask.to_bytes()))
    assert answer.code == "ok"
    return answer.total


@pytest.mark.parametrize(
    "changed", [{"bound": 2.0**-20, "sigma": 30.0 * 2.0**-20}, {"clip_factor": 2**0.5}, {"sigma": 31.0}]
)
def test_nodes_that_were_asked_different_things_cannot_be_added(
    changed: dict[str, Any], group: dict[int, Node]
) -> None:
    """Nodes open only shares that belong to the question for which they voted."""
    nodes = {node.name: node for node in group.values()}
    names = tuple(nodes)

    def unmasked(step: str, others: dict[str, Any]) -> list[Answer]:
        asks = {name: asked(step=step, **(others if name != "node0" else {})) for name in names}
        hidden = {name: total_of(nodes[name], asks[name]) for name in names}
        question = nodes["node0"]._question(asks["node0"])
        votes = {name: total_of(nodes[name], asked(kind="agree", thing=question)) for name in names}
        parts = {name: b"".join(masks.for_node(name, names, hidden, votes, names)) for name in names}
        return [
            Answer.from_bytes(nodes[name].answer(asked(kind="unmask", thing=question + parts[name]).to_bytes()))
            for name in names
        ]

    assert {answer.code for answer in unmasked("1.0", {})} == {"ok"}
    assert {answer.code for answer in unmasked("2.0", changed)} == {"refused"}


def test_names_that_could_be_cut_in_two_ways_are_no_names(group: dict[int, Node]) -> None:
    for changed in ({"run": "x", "step": "y\nz"}, {"run": "x\ny", "step": "z"}, {"run": "x/y"}, {"step": ""}):
        answer = Answer.from_bytes(group[10].answer(asked(**changed).to_bytes()))
        assert answer.code == "malformed", changed


@pytest.mark.parametrize("n", [20, 100])  # fitted one by one, and together
def test_whose_numbers_make_a_head_fail_does_not_show(n: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(fit: Any) -> Any:
        def own(work: RidgeHeads, X: np.ndarray, *rest: Any) -> np.ndarray:
            if np.abs(X).max() > 1e6:
                raise np.linalg.LinAlgError(f"did not converge: {X}")
            return fit(work, X, *rest)

        return own

    monkeypatch.setattr(RidgeHeads, "own", failing(RidgeHeads.own))
    monkeypatch.setattr(RidgeHeads, "__call__", failing(RidgeHeads.__call__))
    data = users(n)
    X = data.X.copy()
    X[: data.offsets[1]] = 1e7
    node = Node("n", dataclasses.replace(data, X=X), tmp_path, threads=1)
    ask = Ask(kind="heads", run="r", step="h", token="t", thing=wire.encode(RidgeHeads(basis())))
    assert Answer.from_bytes(node.answer(ask.to_bytes())).code == "ok"
    heads = read_heads(tmp_path / "heads.npz")["heads"]
    assert not heads[0].any()
    assert heads[1:].any(axis=1).all()


def test_shares_of_one_noise_are_exact_or_there_are_none(group: dict[int, Node]) -> None:
    """Rounded to coarse cells, shares would not add up to the Gaussian that is charged."""
    answer = Answer.from_bytes(group[10].answer(asked(noise="float").to_bytes()))
    assert answer.code == "refused"
