"""FedPower's Figures 3 to 10 (Guo et al. 2021) on a9a and MNIST, one picture each.

The spectral sine of the angle to the exact top-5 space after each of 25 communications, with sign fixing: for local
steps p, devices m, participants K and decaying p, first without noise (Figures 3 to 6), then with the printed noise at
ε₁ = ε₂ = 1 in every round (Figures 7 to 10). That noise protects no row (docs/fedpower.md). acoustic, the paper's third
set, is not available here.

``python -m benchmarks.papers.fedpower_figures [--sets a9a,mnist]`` runs and draws; ``--draw`` draws the pictures again
from ``results/fedpower_figures.json``; ``--longer`` runs Figure 6's lines on a9a for 100 communications and nothing
else; ``--quick`` is a smoke test.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.data import available, load, min_max
from benchmarks.tables import IMAGES, RESULTS, keep, table
from tacitly import subspace_distance
from tacitly.methods.fedpower.as_printed import Settings, iterates

Array = npt.NDArray[np.float64]

K, COMMUNICATIONS, DEVICES = 5, 25, 20
SETS = ("a9a", "mnist")
SWEEPS: dict[str, list[tuple[str, int, dict[str, Any]]]] = {
    "local steps p": [(f"p = {p}", DEVICES, {"local_steps": p}) for p in (1, 2, 4, 8)],
    "devices m": [(f"m = {m}", m, {}) for m in (10, 20, 50, 100)],
    "participants K of 20, schemes 1 and 2": [
        (f"K = {k}, scheme {s}", DEVICES, {"participants": k, "scheme": s}) for k in (5, 15) for s in (1, 2)
    ],
    "decaying p": [("p = 4", DEVICES, {}), ("p = 4, 3, 2, 1, 1, …", DEVICES, {"decay": True})],
}
FIGURES = {
    3 + row * 4 + column: (title, epsilon)
    for row, epsilon in enumerate((math.inf, 1.0))
    for column, title in enumerate(SWEEPS)
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="made-up rows, nothing is kept")
    parser.add_argument("--draw", action="store_true", help="only draw, from the results that are kept")
    parser.add_argument("--longer", action="store_true", help="only Figure 6 on a9a, for 100 communications")
    parser.add_argument("--sets", default=",".join(SETS))
    arguments = parser.parse_args()
    if arguments.quick:
        X = min_max(np.random.default_rng(0).normal(size=(600, 8)) ** 2)
        found = {"made up": curves(X, 3)}
        print(text_of({"curves": found}))
        assert all(svg(number, found).startswith("<svg") for number in FIGURES)
        return
    kept = RESULTS / "fedpower_figures.json"
    data = json.loads(kept.read_text(encoding="utf-8")) if kept.is_file() else {"curves": {}}
    if arguments.longer:
        before = data.get("other parts") or {name: data[name] for name in ("date", "machine")}
        data = {"curves": data["curves"], "longer": longer(load("a9a")), "other parts": before}
        keep("fedpower_figures", data, text_of(data), quick=False)
        return
    if not arguments.draw:
        if not available():
            sys.exit("The data sets were not found. Set TACITLY_DATA to their folder.")
        data = {"curves": data["curves"], "longer": longer(load("a9a"))}
        for name in arguments.sets.split(","):
            data["curves"][name] = curves(load(name), COMMUNICATIONS)
            keep("fedpower_figures", data, text_of(data), quick=False)
    for number in FIGURES:
        file = IMAGES / f"fedpower_figure_{number}.svg"
        file.write_text(svg(number, data["curves"]), encoding="utf-8")


def curves(X: Array, communications: int) -> dict[str, dict[str, list[float]]]:
    """Return the errors after each communication, by figure and line."""
    truth = np.linalg.eigh(X.T @ X)[1][:, ::-1][:, :K]
    rows = X[np.random.default_rng(0).permutation(len(X))]
    found: dict[str, dict[str, list[float]]] = {str(number): {} for number in FIGURES}
    for m in sorted({m for sweep in SWEEPS.values() for _, m, _ in sweep}):
        parts = np.array_split(rows, m)
        matrices, sizes = np.array([A.T @ A / len(A) for A in parts]), np.array([float(len(A)) for A in parts])
        for number, (title, epsilon) in FIGURES.items():
            for label, devices, how in SWEEPS[title]:
                if devices == m:
                    found[str(number)][label] = errors(matrices, sizes, truth, epsilon, communications, how)
    return found


def longer(X: Array) -> dict[str, list[float]]:
    """Return Figure 6's lines for 100 communications."""
    truth = np.linalg.eigh(X.T @ X)[1][:, ::-1][:, :K]
    parts = np.array_split(X[np.random.default_rng(0).permutation(len(X))], DEVICES)
    matrices, sizes = np.array([A.T @ A / len(A) for A in parts]), np.array([float(len(A)) for A in parts])
    lines = SWEEPS["decaying p"]
    return {label: errors(matrices, sizes, truth, math.inf, 4 * COMMUNICATIONS, how) for label, _, how in lines}


def errors(
    matrices: Array, sizes: Array, truth: Array, epsilon: float, communications: int, how: dict[str, Any]
) -> list[float]:
    steps = int(how.get("local_steps", 4))
    settings = Settings(
        **{"local_steps": steps, "iterations": communications * steps, "alignment": "signs", "per_round": True, **how},
        epsilon_local=epsilon,
        epsilon_central=epsilon,
    )
    bases = list(iterates(matrices, sizes, K, settings, 1))[:communications]
    return [float(f"{subspace_distance(basis, truth):.3g}") for basis in bases]


def text_of(data: dict[str, Any]) -> str:
    rows = [
        [f"Figure {number}", name, label, f"{line[min(4, len(line) - 1)]:.1e}", f"{line[-1]:.1e}"]
        for number in FIGURES
        for name, found in data["curves"].items()
        for label, line in found[str(number)].items()
    ]
    text = table(["", "set", "line", "after 5 communications", "at the end"], rows)
    if "longer" not in data:
        return text
    fixed, decaying = data["longer"].values()
    ahead = next(at for at in range(len(fixed)) if all(b < a for a, b in zip(fixed[at:], decaying[at:], strict=True)))
    rows = [[label, *(f"{line[at - 1]:.1e}" for at in (25, ahead + 1, 100))] for label, line in data["longer"].items()]
    header = ["Figure 6, a9a, communications:", "25", f"{ahead + 1} (decaying p is ahead from here on)", "100"]
    return text + "\n\n" + table(header, rows)


WIDTH, HEIGHT, LEFT, TOP = 330, 210, 52, 30
COLOURS = ("#1f6fb2", "#c2541b", "#2e7d4f", "#7b4ea3")


def svg(number: int, found: dict[str, Any]) -> str:
    """Return one figure: a panel per set, errors on a logarithmic scale."""
    title, epsilon = FIGURES[number]
    noise = "without noise" if math.isinf(epsilon) else "with the printed noise, ε₁ = ε₂ = 1 per round"
    labels = list(next(iter(found.values()))[str(number)])
    wide, high = len(found) * (WIDTH + LEFT) + 20, TOP + HEIGHT + 70
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" font-family="sans-serif" font-size="11" '
        f'role="img" aria-label="Figure {number}: {title}, {noise}">',
        f'<rect width="{wide}" height="{high}" fill="#fff"/>',
        f'<text x="{LEFT}" y="16" font-size="13">Figure {number}: {title}, {noise}</text>',
    ]
    for at, (name, by_figure) in enumerate(found.items()):
        parts += panel(name, by_figure[str(number)], LEFT + at * (WIDTH + LEFT))
    for at, label in enumerate(labels):
        x, y = LEFT + at * 130, TOP + HEIGHT + 55
        parts.append(f'<path d="M{x} {y - 4}h22" stroke="{COLOURS[at]}" stroke-width="2"/>')
        parts.append(f'<text x="{x + 27}" y="{y}">{label}</text>')
    return "\n".join([*parts, "</svg>", ""])


def panel(name: str, lines: dict[str, list[float]], left: int) -> list[str]:
    """Return the axes and lines of one set."""
    values = [max(value, 1e-16) for line in lines.values() for value in line]
    low, high = math.floor(math.log10(min(values))), max(math.ceil(math.log10(max(values))), 0)
    long = max(len(line) for line in lines.values())
    every = max(1, (high - low) // 5)
    bottom = TOP + HEIGHT
    parts = [f'<path d="M{left} {TOP}V{bottom}H{left + WIDTH - 20}" fill="none" stroke="#555"/>']
    for power in range(low, high + 1, every):
        y = bottom - HEIGHT * (power - low) / (high - low)
        parts.append(f'<path d="M{left} {y:.0f}h{WIDTH - 20}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4:.0f}" text-anchor="end">1e{power}</text>')
    for line, colour in zip(lines.values(), COLOURS, strict=False):
        points = " ".join(
            f"{left + (WIDTH - 20) * at / max(long - 1, 1):.0f},"
            f"{bottom - HEIGHT * (math.log10(max(value, 1e-16)) - low) / (high - low):.0f}"
            for at, value in enumerate(line)
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
    middle = left + (WIDTH - 20) // 2
    parts.append(f'<text x="{middle}" y="{bottom + 28}" text-anchor="middle">communications 1 to {long}, {name}</text>')
    parts.append(f'<text x="{left}" y="{bottom + 14}">1</text>')
    parts.append(f'<text x="{left + WIDTH - 20}" y="{bottom + 14}" text-anchor="end">{long}</text>')
    return parts


if __name__ == "__main__":
    main()
