"""Every goal of speed beside what was measured: ``python -m benchmarks.speed.goals`` reads ``benchmarks/results``.

Nothing is measured here. A line names the program that measures it; dates are those of its results.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.tables import RESULTS, table

ROUND = "one round of Private FedRep"
Lines = Iterator[tuple[str, str, str]]


def main() -> None:
    text = as_text()
    print(text)
    (RESULTS / "speed_goals.md").write_text(text + "\n", encoding="utf-8")


def as_text() -> str:
    """Return the table: what, goal, measured, by which program, on what machine, when."""
    rows = []
    for name, lines in PROGRAMS.items():
        path = RESULTS / f"speed_{name}.json"
        if not path.exists():
            continue
        data = json.loads(path.read_text("utf-8"))
        machine = data.get("device") or data.get("machine", "").partition(", Python")[0]
        machine = machine if "cores" in machine or "device" in data else "2 cores, x86_64"  # not recorded before
        rows += [[*line, name, machine, data.get("date", "not recorded")] for line in lines(data)]
    return table(["what", "goal", "measured", "program", "machine", "date"], rows)


def of_cuda(data: dict[str, Any]) -> Lines:
    first = data["rounds"][0]
    yield "a round of 1,000,000 × 20 × 64, k = 4, on a GPU", "≤ 4 ms", f"{first['round']:.2f} ms"


def of_round(data: dict[str, Any]) -> Lines:
    for case, goal in zip(data["cases"], (1.4, 2.0), strict=True):
        name = f"a round of Private FedRep / reading, d = {case['features']}, k = {case['rank']}"
        yield name, f"≤ {goal}", f"{case['best_round'] / case['best_read']:.2f}"


def of_floors(data: dict[str, Any]) -> Lines:
    lines = data["lines"]
    rounds = {name: line["seconds"] / lines[ROUND]["seconds"] for name, line in lines.items()}
    two = rounds["start: moment of features"] + rounds["start: direction votes"]
    least = [lines[f"start: {name}"]["least"] for name in ("moment of features", "direction votes")]
    floor = sum(least) / lines[ROUND]["seconds"]
    yield "the start's moment and votes, d = 64", "≤ 3 rounds", f"{two:.1f} rounds (their products: {floor:.1f})"
    many = [rounds[name] for name in rounds if name.startswith("start of 100,000 users")]
    if many:
        yield "the same for 100,000 users, of whom some rows are read", "≤ 3 rounds", f"{sum(many):.1f} rounds"
    yield "the start's moment / XᵀX by BLAS", "≤ 1.3", f"{lines['start: moment of features']['ratio']:.2f}"
    yield "the start's scales of columns", "none given", f"{rounds['start: scales of columns']:.1f} rounds"
    reading = lines[ROUND]["least"] / lines[ROUND]["seconds"]
    for name, what in (("heads: ridge", "heads by ridge regression"), ("heads under a prior", "heads under a prior")):
        yield what, "≤ 2 rounds", f"{rounds[name]:.1f} rounds (reading: {reading:.1f})"
    central = "step of the population's direction, all directions whitened"
    if central in rounds:
        yield f"a {central}", "none given", f"{rounds[central]:.1f} rounds (reading: {reading:.1f})"
    equations = lines["normal equations (PrivateAltMin)"]
    yield (
        "a release of PrivateAltMin, 20,000 users",
        "≤ 0.5 s",
        f"{20_000 * equations['seconds'] / data['users']:.2f} s",
    )
    noise = lines["exact noise"]
    yield "exact noise, a coordinate", "≤ 1.1 µs", f"{1e6 * noise['seconds'] / noise['units']:.2f} µs"


def of_mixed_effects(data: dict[str, Any]) -> Lines:
    for case in data["releases"]:
        if case["dtype"] == "float64":
            name = f"MixedEffects: {case['release']} / reading, processor times"
            yield name, "≤ 3", f"{case['cpu'] / case['cpu_read']:.1f}"


def of_low_rank_sparse(data: dict[str, Any]) -> Lines:
    case = data["cases"][0]
    yield "LowRankSparse, a step / reading", "≤ 3", f"{case['best_iteration'] / case['best_read']:.1f}"


def of_gram(data: dict[str, Any]) -> Lines:
    for name in ("covtype", "mnist"):
        for what, goal in (("gram", 1.0), ("step", 1.3)):
            ours, bare = data[name][what]
            label = "Gram pass / bare product" if what == "gram" else "power step / its products"
            yield f"{label}, {name}", f"≤ {goal:g}", f"{ours / bare:.2f}"


def of_trace(data: dict[str, Any]) -> Lines:
    yield "trace regression, a step / reading", "≤ 1.3", f"{data['ratio']:.2f}"


def of_way_in(data: dict[str, Any]) -> Lines:
    for kind in ("parquet", "csv"):
        arrow, ours = (line for line in data["lines"] if line["kind"] == kind)
        name = f"a table of {ours['users']:,} users to a cohort on disk / Arrow, {kind}"
        yield name, "≤ 2, ≤ 1 GB", f"{ours['processor'] / arrow['processor']:.1f}, {ours['memory'] / 1e9:.1f} GB"


def of_driver(data: dict[str, Any]) -> Lines:
    line = data["lines"][-1]
    name = f"the driver's processor time per round, {line['shards']:,} shards"
    yield name, "measured", f"{line['processor']:.2f} s, {line['sent'] / 1e6:.1f} MB"


def of_cold_start(data: dict[str, Any]) -> Lines:
    for line in data["lines"]:
        if "import" in line:
            yield line["what"], "≤ 0.15 s", f"{line['import']:.2f} s"
            continue
        for which, goal in (("first", "≤ 5 s"), ("second", "≤ 2 s")):
            name = f"{which} fit of 5,000 users, {line['what']}, {line['way']}: processor time of the process"
            yield name, goal, f"{line[f'{which}_processor']:.1f} s"


def of_scale(data: dict[str, Any]) -> Lines:
    for name, value in data["exponents"].items():
        if not name.endswith("rank"):  # work grows with the rank by less than its first power
            yield f"exponent: {name}", "0.95 to 1.05", f"{value:.2f}"
    for line in data["lines"]:
        if line["fit"] and line["case"]["users"] == 1_000_000:
            fit = line["fit"]
            took = f"{fit['seconds']:.0f} s elapsed, {fit['processor']:.0f} s of processor time"
            yield "a fit of 1,000,000 × 20 × 64, cached, two cores", "≤ 20 s elapsed", took


def of_engines(data: dict[str, Any]) -> Lines:
    ours = {row["users"]: row["seconds per round"] for row in data["race"] if row["engine"] == "tacitly, local"}
    for row in data["race"]:
        wall = row["seconds per round"]
        if row["engine"] in ("pfl", "flower") and isinstance(wall, float):
            name = f"{row['engine']}: a round of {row['users']:,} users, of our time"
            yield name, "measured", f"{wall / ours[row['users']]:.0f}×"


PROGRAMS: dict[str, Callable[[dict[str, Any]], Lines]] = {
    "cuda": of_cuda,
    "round": of_round,
    "floors": of_floors,
    "mixed_effects": of_mixed_effects,
    "low_rank_sparse": of_low_rank_sparse,
    "gram": of_gram,
    "trace": of_trace,
    "way_in": of_way_in,
    "cold_start": of_cold_start,
    "scale": of_scale,
    "driver": of_driver,
    "engines": of_engines,
}

if __name__ == "__main__":
    main()
