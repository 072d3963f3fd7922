"""The GPU engine: a round against reading the rows, Triton kernels against plain PyTorch and the local engine.

``python -m benchmarks.speed.cuda`` (``make bench-gpu``) needs a CUDA device, PyTorch with Triton, and NumPy. It shows

* one round of Private FedRep for 1,000,000 users, from the query to integers on the host, against the time to read the
  rows once (their sum) and against plain batched PyTorch, in one run;
* the releases of mixed effects, of the start of Private FedRep and its round for classes, of FedPower and of
  LowRankSparse (with a given number of personal coordinates, and with as many as each user's cross-validation says) in
  the same way;
* how far Triton kernels and plain PyTorch, both on the device, are apart, whether two runs give the same integers, and
  how far the device's sums are from those of the queries' definitions in NumPy, one user after the other.

Times are medians after warm-up. ``--quick`` compares forms in plain PyTorch, on the processor, with the definitions.
(``tests/federation/cuda`` compares them with the local engine.)
"""

from __future__ import annotations

import argparse
import datetime
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks.tables import keep, table
from tacitly.federation.cuda import basis_step
from tacitly.federation.cuda.forms import Context, form_of
from tacitly.federation.cuda.rows import DeviceRows, Span
from tacitly.federation.cuda.sums import integer_sums
from tacitly.federation.query import BLOCK, ROW_BLOCK, Query
from tacitly.heads.losses import Loss
from tacitly.linalg import orthonormal
from tacitly.methods.fedpower.gram import ShiftedGram
from tacitly.methods.fedpower.power import PowerStep
from tacitly.methods.fedrep.queries import BasisStep, LossStep
from tacitly.methods.low_rank_sparse.heads import Sparsity
from tacitly.methods.low_rank_sparse.queries import SparseStep
from tacitly.methods.mixed_effects import queries as about
from tacitly.methods.mixed_effects import variance_queries
from tacitly.methods.mixed_effects.advantage import Advantage
from tacitly.methods.mixed_effects.posterior import Coordinates, Prior
from tacitly.methods.mixed_effects.unit_queries import Angles, Magnitudes
from tacitly.methods.shared.direction_votes import DirectionVote
from tacitly.methods.shared.typical_norm import TypicalNorm
from tacitly.methods.shared.whitening import FeatureMoment, Whitening
from tacitly.privacy.guarantee import Unit

GRID, BOUND = 2.0**-40, 1.0
GOAL = 4.0  # milliseconds, for the first round
ROUNDS = (  # users, fewest and most rows, features, rank, directions of the whitening, intercepts
    (1_000_000, 20, 20, 64, 4, 0, False),
    (1_000_000, 20, 20, 64, 4, 8, False),
    (1_000_000, 20, 20, 64, 4, 64, False),
    (1_000_000, 20, 20, 64, 4, 0, True),
    (1_000_000, 5, 40, 64, 4, 0, False),
    (500_000, 20, 20, 128, 8, 0, False),
)


def users(n: int, fewest: int, most: int, d: int, device: torch.device, seed: int = 0) -> DeviceRows:
    """Return random users, made on the device."""
    generator = torch.Generator(device=device).manual_seed(seed)
    counts = torch.randint(fewest, most + 1, (n,), generator=generator, device=device)
    offsets = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    size = int(offsets[-1])
    X = torch.empty(size, d, device=device)
    for first in range(0, size, 1 << 20):
        X[first : first + (1 << 20)].normal_(generator=generator)
    y = torch.randn(size, generator=generator, device=device)
    rows = DeviceRows(np.empty((0, d), np.float32), None, offsets.cpu().numpy(), device, resident=True)
    rows._held = Span(0, X, y, offsets)
    return rows


def host_users(n: int, d: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return ragged random users that every machine makes alike."""
    rng = np.random.default_rng(5)
    offsets = np.concatenate([[0], np.cumsum(rng.integers(0, 40, size=n))])
    X = rng.standard_normal((offsets[-1], d), dtype=np.float32)
    weights = rng.standard_normal((n, 4)) @ rng.standard_normal((4, d)) / math.sqrt(d)
    fitted = np.einsum("ij,ij->i", X, np.repeat(weights, np.diff(offsets), axis=0))
    return X, (fitted + 0.3 * rng.standard_normal(len(X))).astype(np.float32), offsets


def whitening(d: int, directions: int) -> Whitening:
    rng = np.random.default_rng(2)
    across = np.linalg.qr(rng.normal(size=(d, max(directions, 1))))[0][:, :directions]
    return Whitening(np.exp(0.2 * rng.normal(size=d)), across, 0.5 * rng.uniform(size=directions))


def step(d: int, k: int, directions: int = 0, centered: bool = False) -> BasisStep:
    basis = orthonormal(np.random.default_rng(1).normal(size=(d, k)))[0]
    return BasisStep(basis, np.eye(k), 0.3, whitening(d, directions), centered)


def panel_queries(d: int) -> dict[str, tuple[Any, float]]:
    """Return the releases of mixed effects on d features, with their clips."""
    units = Coordinates(np.zeros(d), np.ones(d), 0.0, 1.0)
    size, rng = units.size, np.random.default_rng(3)
    prior = Prior(0.1 * rng.normal(size=size), 0.3 * np.eye(size) + 0.02 * rng.normal(size=(size, size)), 0.7)
    every, eye, groups = np.ones(d + 1), np.eye(size), np.append(0.0, np.ones(size - 1))
    score = about.Score(units, prior, eye, eye, 0.8)
    measured = about.MeasuredScore(score, 0.5, np.zeros(size))
    spread = variance_queries.MeasuredSpread(units, prior, 0.5)
    magnitudes, angles = Magnitudes(every, 0.0 * every, every, 30.0), Angles(every, 0.1 * every, 2.0 * every, every)
    return {
        "magnitudes": (magnitudes, magnitudes.bound),
        "angles": (angles, angles.bound),
        "moments and the norm of information": (TypicalNorm(about.Information(units, prior, eye), 12.0), 1.0),
        "information": (about.Information(units, prior, eye), 0.8),
        "score": (measured, measured.bound),
        "variances": (variance_queries.Variances(units, prior, groups), 2.2),
        "spread": (spread, spread.bound),
        "coverage": (Advantage(units, prior), Advantage(units, prior).bound),
    }


def other_queries(d: int, k: int) -> dict[str, tuple[Any, float]]:
    basis = orthonormal(np.random.default_rng(1).normal(size=(d, k)))[0]
    return {
        "Private FedRep, feature moment": (FeatureMoment(d), 1.0),
        "Private FedRep, direction votes": (DirectionVote(whitening(d, 8)), 1.0),
        "Private FedRep, round for two classes": (
            LossStep(basis, np.eye(k), 0.3, whitening(d, 8), Loss("logistic"), True),
            1.0,
        ),
        "FedPower, Gram matrix": (ShiftedGram(np.zeros(d), 1.0), 50.0),
        "FedPower, power step": (PowerStep(basis, np.zeros(d), 1.0), 20.0),
    }


def sparse_queries(d: int, k: int, most: int) -> dict[str, tuple[Any, float]]:
    """Return LowRankSparse's step as many users make it, with up to ``most`` coordinates where users choose."""
    public = step(d, k, 8)
    fields = (public.basis, public.head_metric, public.scale, public.whitening)
    return {
        "LowRankSparse, step, 5 coordinates": (SparseStep(*fields, sparsity=Sparsity(5), swaps=0), 1.0),
        f"LowRankSparse, step, up to {most} chosen": (SparseStep(*fields, sparsity=Sparsity(most, True), swaps=0), 1.0),
    }


def milliseconds(work: Callable[[], Any], repeat: int) -> float:
    """Return the median wall time; what is timed ends with numbers on the host."""
    for _ in range(2):
        work()
    times = []
    for _ in range(repeat):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


def summed(rows: DeviceRows, query: Any, bound: float, context: Context) -> np.ndarray:
    form = form_of(query, context)
    assert form is not None
    block = BLOCK if query.unit is Unit.USER else ROW_BLOCK
    total, kept = integer_sums(rows, form, bound, GRID, block=block)
    assert kept
    return total


def apart(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.linalg.norm(one - other) / np.linalg.norm(other))


def measure_rounds(device: torch.device, repeat: int) -> list[dict[str, Any]]:
    found = []
    for n, fewest, most, d, k, directions, centered in ROUNDS:
        rows = users(n, fewest, most, d, device)
        held = rows._held
        assert held is not None
        query, fused = step(d, k, directions, centered), Context(device, False, n)
        public = basis_step.public_of(query, device, held.X.dtype)
        part = rows_of(rows, 50_000)
        one = summed(rows, query, BOUND, fused)
        line: dict[str, Any] = {
            "users": n,
            "rows": f"{fewest} to {most}" if most > fewest else str(most),
            "features": d,
            "rank": k,
            "whitening": directions,
            "intercepts": centered,
            "bytes": held.X.numel() * 4 + held.y.numel() * 4,
            "read": milliseconds(lambda held=held: held.X.sum().item(), repeat),
            "rows pass": milliseconds(lambda held=held, public=public: basis_step.fused_steps(held, public), repeat),
            "round": milliseconds(
                lambda rows=rows, query=query, fused=fused: summed(rows, query, BOUND, fused), repeat
            ),
            "again": bool(np.array_equal(one, summed(rows, query, BOUND, fused))),
            "apart": apart(summed(part, query, BOUND, fused), summed(part, query, BOUND, Context(device, True, n))),
        }
        if not centered and most == fewest:
            line["plain"] = milliseconds(lambda held=held, public=public, m=most: batched(held, public, m), 3)
        print({key: value if not isinstance(value, float) else float(f"{value:.4g}") for key, value in line.items()})
        found.append(line)
    return found


def batched(span: Span, public: basis_step.Public, rows: int) -> np.ndarray:
    """Return a round in plain batched PyTorch, in single precision, for users with equally many rows."""
    d, k = public.directions.shape[1], public.directions.shape[0]
    total = torch.zeros(k, d + k, dtype=torch.float64, device=span.X.device)
    for first in range(0, span.users, 100_000):
        some = slice(first * rows, min(first + 100_000, span.users) * rows)
        X, y = span.X[some].view(-1, rows, d), span.y[some].view(-1, rows, 1)
        projected = X @ public.directions.T
        head = torch.linalg.solve_ex(projected.mT @ projected, projected.mT @ y)[0]
        pull = (X.mT @ (y - projected @ head))[..., 0] / ((rows - k) * X[:, ::4].square().mean(dim=(1, 2)))[:, None]
        head, pull = head[..., 0], pull / public.c
        size = head.square().sum(dim=1)
        weight = 1.0 / (size.sqrt() * (size + pull.square().sum(dim=1)).sqrt())
        total += ((head * weight[:, None]).mT @ torch.cat([pull, head], dim=1)).to(torch.float64)
    return np.asarray(total.cpu().numpy())


def rows_of(rows: DeviceRows, n: int) -> DeviceRows:
    """Return the first users of a cohort on the device."""
    held = rows._held
    assert held is not None
    few = DeviceRows(rows.X, None, rows.offsets[: n + 1], rows.device, resident=True)
    few._held = Span(0, held.X, held.y, held.offsets[: n + 1])
    return few


def measure_queries(device: torch.device, repeat: int) -> list[dict[str, Any]]:
    found = []
    wide = other_queries(64, 4) | sparse_queries(64, 4, Sparsity.of("auto", 64).most)
    for family, d, queries in (("MixedEffects, 8 features: ", 8, panel_queries(8)), ("", 64, wide)):
        rows = users(1_000_000, 20, 20, d, device)
        held = rows._held
        assert held is not None
        read = milliseconds(lambda held=held: held.X.sum().item(), repeat)
        context = Context(device, False, rows.n_users)
        for name, (query, bound) in queries.items():
            found.append({"query": f"{family}{name}", "read": read, **measure_query(rows, query, bound, context)})
            print(found[-1])
        torch.cuda.empty_cache()
    return found


def measure_query(rows: DeviceRows, query: Any, bound: float, context: Context) -> dict[str, Any]:
    few = rows_of(rows, 20_000)  # this compiles what is compiled
    plain, fused = (summed(few, query, bound, Context(rows.device, form, math.inf)) for form in (True, False))
    torch.cuda.synchronize()
    start = time.perf_counter()
    first = summed(rows, query, bound, context)  # moments are computed here, once
    cold = 1e3 * (time.perf_counter() - start)
    return {
        "first": cold,
        "later": milliseconds(lambda: summed(rows, query, bound, context), 3),
        "again": bool(np.array_equal(first, summed(rows, query, bound, context))),
        "apart": apart(fused, plain),
    }


def against_definitions(device: torch.device, n: int, *, plain: bool) -> list[dict[str, Any]]:
    """Return how far sums of forms are from those of definitions: one user, or row, after the other."""
    X, y, offsets = host_users(n, 64)
    rows, found = DeviceRows(X, y, offsets, device), []
    for name, (query, bound) in compared(64).items():
        with np.errstate(all="ignore"):
            defined = Query.block_sum(query, X, y, offsets, bound) / GRID
        if isinstance(query, FeatureMoment):  # in single precision a part of the norm is reserved for rounding errors
            defined *= 1.0 - 2.0**-16 * 8.0
        total = summed(rows, query, bound, Context(device, plain, math.inf))
        found.append({"query": name, "apart": apart(total, defined)})
    return found


def compared(d: int) -> dict[str, tuple[Any, float]]:
    steps = {"PrivateFedRep, round": (step(d, 4, 8), 1.0), "the same with intercepts": (step(d, 4, 0, True), 1.0)}
    panel = {f"MixedEffects, {name.split(' and ')[-1]}": each for name, each in panel_queries(d).items()}
    return steps | panel | other_queries(d, 4) | sparse_queries(d, 4, 8)  # 8: definitions in NumPy have no more


def measure_streaming(device: torch.device, repeat: int) -> dict[str, float]:
    """Return the time of a round whose rows come from the host."""
    rows = users(200_000, 20, 20, 64, device)
    held = rows._held
    assert held is not None
    streamed = DeviceRows(held.X.cpu().numpy(), held.y.cpu().numpy(), rows.offsets, device, resident=False)
    query, context = step(64, 4), Context(device, False, rows.n_users)
    same = np.array_equal(summed(rows, query, BOUND, context), summed(streamed, query, BOUND, context))
    work = milliseconds(lambda: summed(streamed, query, BOUND, context), 3)
    return {"bytes": float(held.X.numel() * 4), "round": work, "same": float(same)}


def yes(value: bool) -> str:
    return "yes" if value else "no"


def text_of(data: dict[str, Any]) -> str:
    first = data["rounds"][0]
    what = "PrivateFedRep, one round, 1,000,000 users × 20 rows × 64 features, float32, k = 4"
    measured = f"{first['round']:.2f} ms ({first['round'] / first['read']:.2f} × reading the rows once)"
    sent = data["streamed"]
    streamed = f"{sent['round']:.0f} ms ({sent['bytes'] / sent['round'] / 1e6:.1f} GB/s)"
    rounds = [
        [
            *(f"{line['users']:,}", line["rows"], line["features"], line["rank"], line["whitening"]),
            *(yes(line["intercepts"]), line["read"], line["round"], line["round"] / line["read"]),
            *(line.get("plain", "–"), line["apart"], yes(line["again"])),
        ]
        for line in data["rounds"]
    ]
    queries = [
        [line["query"], line["read"], line["first"], line["later"], line["apart"], yes(line["again"])]
        for line in data["queries"]
    ]
    sizes = ["users", "rows", "features", "rank", "whitening directions", "intercepts"]
    times = ["read rows, ms", "round, ms", "round / read", "batched PyTorch, ms"]
    checks = ["apart from plain PyTorch", "same twice"]
    parts = [
        table(
            ["line", "goal", "measured", "machine", "date"],
            [
                [what, f"≤ {GOAL:g} ms", measured, data["device"], data["date"]],
                [
                    "the same with rows that stay on the host, 200,000 users",
                    "–",
                    streamed,
                    data["device"],
                    data["date"],
                ],
            ],
        ),
        table([*sizes, *times, *checks], rounds),
        table(["release, 1,000,000 users × 20 rows", "read rows, ms", "first, ms", "later, ms", *checks], queries),
        _definitions_text(data["definitions"]),
    ]
    return "\n\n".join(parts)


def _definitions_text(lines: list[dict[str, Any]]) -> str:
    header = ["sum over ragged users, 64 features, float32", "apart from the definition"]
    return table(header, [[line["query"], line["apart"]] for line in lines])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--repeat", type=int, default=20)
    options = parser.parse_args()
    if options.quick:
        found = against_definitions(torch.device("cpu"), 20, plain=True)
        print(_definitions_text(found))
        assert max(line["apart"] for line in found) < 1e-5
        return
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a CUDA device; found none. --quick runs without one.")
    device = torch.device("cuda")
    data = {
        "device": torch.cuda.get_device_name(device),
        "torch": torch.__version__,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "goal_ms": GOAL,
        "definitions": against_definitions(device, 500, plain=False),
        "rounds": measure_rounds(device, options.repeat),
        "queries": measure_queries(device, options.repeat),
        "streamed": measure_streaming(device, options.repeat),
    }
    keep("speed_cuda", data, text_of(data), quick=False)


if __name__ == "__main__":
    main()
