"""What ``tacitly plan`` predicts, compared with what a fit then achieves.

``python -m benchmarks.plan`` (minutes; ``--quick`` for a smoke test; ``--only NAME``). Twelve shapes and seven panels.
For a shape the plan gets the public numbers. The fit gets new users from other code, with columns as in real tables:
correlated, heavy-tailed, in other units. (A public schema declares which columns are yes/no.) For a panel the plan gets
100 users, drawn at random and treated as public, and the number of the other users (at most 4,000); the fit gets the
others, with a fifth of their rows held out.

Shares are those of :mod:`tacitly.planning.curve`, for MixedEffects: ratios of means over new draws or splits, compared
with the plan's over simulations. A prediction is within the promise if it is within a factor of two of what is
achieved, or within two percentage points. If results of fits vary widely, the mean of a few fits is meaningless. So
there are at least four fits, until the standard error of the share is below a tenth of it or half a point, but at most
60. If less than half is achieved, one additional fit with half of what is possible is included in that standard error,
because two dozen fits that gained nothing do not show that fewer than one in twenty gains something.

The planner was developed on the first half of the shapes, on three of the panels, and on other shapes; the others are
marked as held out.
"""

from __future__ import annotations

import argparse
import json
import math
import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import tacitly
from benchmarks.panel_data import DEVELOPED, HELD_OUT, load
from benchmarks.panels import split
from benchmarks.tables import RESULTS, keep, table
from tacitly.arrays import Array
from tacitly.baselines.comparison import LOCAL, MEANS, alternatives
from tacitly.data.cohort import Cohort
from tacitly.data.schema import Schema
from tacitly.heads.losses import Loss
from tacitly.planning.targets import loss_of

EPSILONS = (0.3, 1.0)
SAMPLE = 100
MOST = 4000  # users of a panel
MOST_DRAWS = 60
METHOD = "mixed-effects"


@dataclass(frozen=True)
class Case:
    """A shape as the plan is told it, and what the plan is not told about its columns."""

    name: str
    told: dict[str, Any]
    columns: str = "normal"
    held_out: bool = False

    @property
    def loss(self) -> str:
        """What the target is."""
        return str(self.told.get("loss", "squared"))

    @property
    def scores(self) -> int:
        """Scores per row: one, or one per class where there are more than two."""
        return int(self.told["classes"]) if self.told.get("classes", 2) > 2 else 1

    @property
    def schema(self) -> Schema | None:
        """What is public about the columns, where they are yes or no; a fit would see that in the table's header."""
        if self.columns != "yes or no":
            return None
        return Schema.declared({f"x{j}": {"kind": "boolean"} for j in range(self.told["features"])})


def case(users: int, rows: Any, features: int, *shares: float, held: bool = False, **more: Any) -> Case:
    noise, levels, slopes = shares
    told = {"users": users, "rows": rows, "features": features, "noise": noise, "levels": levels, "slopes": slopes}
    columns = more.pop("columns", "normal")
    row_text = f"{rows[0]}-{rows[1]}" if isinstance(rows, tuple) else str(rows)
    name = f"{users:,} × {row_text} × {features}"
    name += {"logistic": f", {more.get('classes', 2)} classes", "poisson": ", counts"}.get(more.get("loss", ""), "")
    return Case(name, {**told, **more}, columns, held)


CASES = (
    case(600, 6, 4, 0.4, 0.3, 0.1),
    case(1500, (2, 12), 6, 0.5, 0.2, 0.05, columns="correlated"),
    case(800, 20, 5, 0.3, 0.2, 0.3, columns="heavy-tailed"),
    case(1000, 5, 8, 0.6, 0.1, 0.0),
    case(400, 10, 3, 0.2, 0.5, 0.1, columns="yes or no"),
    case(3500, 4, 12, 0.5, 0.2, 0.1, columns="any units"),
    case(500, 8, 5, 0.5, 0.3, 0.05, held=True, columns="correlated"),
    case(1200, (1, 20), 4, 0.3, 0.3, 0.2, held=True, columns="yes or no", between=0.8),
    case(2000, 3, 7, 0.6, 0.2, 0.05, held=True, columns="heavy-tailed"),
    case(300, 30, 3, 0.4, 0.2, 0.3, held=True, columns="any units"),
    case(1000, 6, 9, 0.3, 0.1, 0.4, held=True, directions=2),
    case(3000, 15, 20, 0.4, 0.3, 0.1, held=True),
    case(1000, 10, 5, 0.4, 0.3, 0.1, loss="logistic"),
    case(1500, 8, 4, 0.3, 0.4, 0.1, loss="poisson", mean_count=2.0),
    case(2000, 12, 4, 0.5, 0.2, 0.1, loss="logistic", columns="correlated", held=True),
    case(1500, 15, 3, 0.3, 0.3, 0.1, loss="logistic", classes=3, held=True),
    case(800, (2, 12), 6, 0.4, 0.2, 0.1, loss="poisson", mean_count=1.0, columns="heavy-tailed", held=True),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one shape with one draw; nothing is kept")
    parser.add_argument("--part", choices=("developed", "held out", "panels", "held out panels"), help="one part only")
    parser.add_argument("--only", action="append", help="shapes or panels to run; others stay as they were kept")
    options = parser.parse_args()
    if options.quick:
        found = {"shapes": {CASES[0].name: of_case(CASES[0], most=1, repeats=1)}, "panels": {}}
        keep("plan", found, report(found), quick=True)
        return
    for one in CASES:
        part = "held out" if one.held_out else "developed"
        if options.part in (None, part) and (not options.only or one.name in options.only):
            add("shapes", one.name, of_case(one))
    for names, part in ((DEVELOPED, "panels"), (HELD_OUT, "held out panels")):
        for name in names:
            if options.part in (None, part) and (not options.only or name in options.only):
                add("panels", name, of_panel(name))


def add(kind: str, name: str, result: dict[str, Any]) -> None:
    """Keep one more result beside those that are there, in the order of the lists above."""
    kept = RESULTS / "plan.json"
    found: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {"shapes": {}, "panels": {}}
    found[kind][name] = result
    order = {"shapes": [one.name for one in CASES], "panels": [*DEVELOPED, *HELD_OUT]}
    found = {kind: {key: found[kind][key] for key in keys if key in found[kind]} for kind, keys in order.items()}
    keep("plan", found, report(found), quick=False)


def of_case(one: Case, most: int = MOST_DRAWS, repeats: int = 3) -> dict[str, Any]:
    """Return predicted and achieved shares of a shape."""
    told = {name: value for name, value in one.told.items() if name != "features" or one.schema is None}
    planned = tacitly.plan(**told, schema=one.schema, epsilons=EPSILONS, methods=[METHOD], repeats=repeats)
    achieved: list[dict[str, float]] = []
    while len(achieved) < most and not settled(achieved):
        train, test = fresh(one, np.random.default_rng([77, len(achieved)]))
        achieved.append(shares(train, test, loss_of(planned.shape)))
    return {**predicted(planned), "achieved": achieved, "columns": one.columns, "held out": one.held_out}


def of_panel(name: str) -> dict[str, Any]:
    """Return predicted and achieved shares of a panel: 100 users are public, the others are fitted."""
    panel = load(name)
    panel_rows = np.flatnonzero(np.bincount(panel.users)[panel.users] >= 2)
    people = np.random.default_rng(5).permutation(np.unique(panel.users[panel_rows]))[: SAMPLE + MOST]
    public = np.isin(panel.users, people[:SAMPLE])
    sample = panel.X[public], panel.y[public], panel.users[public]
    planned = tacitly.plan(users=len(people) - SAMPLE, sample=sample, epsilons=EPSILONS, methods=[METHOD])
    rest = np.isin(panel.users, people[SAMPLE:])
    X, y, users = panel.X[rest], panel.y[rest], np.unique(panel.users[rest], return_inverse=True)[1]
    achieved: list[dict[str, float]] = []
    while len(achieved) < MOST_DRAWS and not settled(achieved):
        train, test = (Cohort.from_arrays(X[rows], y[rows], users[rows]) for rows in split(users, len(achieved)))
        achieved.append(shares(train, test, Loss()))
    return {**predicted(planned), "achieved": achieved, "held out": name in HELD_OUT}


def predicted(planned: Any) -> dict[str, Any]:
    lines = [planned.line(epsilon, method=METHOD) for epsilon in EPSILONS]
    return {
        "shape": planned.shape.to_dict(),
        "simulated users": planned.simulated_users,
        "predicted": {f"{line.epsilon:g}": [line.share, line.low, line.high] for line in lines},
        "possible": 1.0 - planned.possible / planned.alone,
    }


def shares(train: Cohort, test: Cohort, loss: Loss) -> dict[str, float]:
    """Fit without privacy and at each ε; return what was gained and what was possible, as parts of the error alone."""
    target, owner = np.asarray(test.y), np.repeat(test.users, np.diff(test.offsets))
    others = alternatives(train, test, loss)
    alone = min(loss.error(target, others[name]) for name in (MEANS, LOCAL))

    def error(epsilon: float) -> float:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = tacitly.MixedEffects(epsilon=epsilon, loss=loss.name, classes=loss.classes).fit(train)
        return loss.error(target, model.predict(test.X, owner))

    found = {f"{epsilon:g}": max(1.0 - error(epsilon) / alone, 0.0) for epsilon in EPSILONS}
    found["possible"] = 1.0 - error(math.inf) / alone
    print(train.n_users, {name: round(value, 3) for name, value in found.items()}, flush=True)
    return found


def share(runs: list[dict[str, float]], epsilon: float) -> tuple[float, float]:
    """Return the share that was achieved, a ratio of means, and its standard error."""
    had, most = np.array([[run[f"{epsilon:g}"], run["possible"]] for run in runs]).T
    ratio = float(had.mean() / most.mean())
    return ratio, float((had - ratio * most).std() / abs(most.mean())) / math.sqrt(len(runs))


def settled(runs: list[dict[str, float]]) -> bool:
    """Whether the shares that were achieved are known well enough; not from a few fits where most gave nothing."""
    return len(runs) >= 4 and all(_settled(runs, epsilon) for epsilon in EPSILONS)


def _settled(runs: list[dict[str, float]], epsilon: float) -> bool:
    ratio, error = share(runs, epsilon)
    if ratio <= 0.5:
        # A lottery that nobody has won yet looks certain: its error is that with one win more than were seen.
        error = max(error, share([*runs, _won(runs, epsilon)], epsilon)[1])
    return error < max(0.1 * ratio, 0.005)


def _won(runs: list[dict[str, float]], epsilon: float) -> dict[str, float]:
    possible = float(np.mean([run["possible"] for run in runs]))
    return {f"{epsilon:g}": 0.5 * possible, "possible": possible}


def fresh(one: Case, rng: np.random.Generator) -> tuple[Cohort, Cohort]:
    """Return users of a case, apart from the planner's own code: rows to fit, and four new ones per user."""
    told = one.told
    n, d, between = told["users"], told["features"], told.get("between", 0.3)
    low, high = told["rows"] if isinstance(told["rows"], tuple) else (told["rows"],) * 2
    counts = rng.integers(low, high + 1, n) + 4
    owner = np.repeat(np.arange(n), counts)
    raw = math.sqrt(between) * _latent(one.columns, (n, d), rng)[owner]
    raw = raw + math.sqrt(1.0 - between) * _latent(one.columns, (len(owner), d), rng)
    if one.columns == "yes or no":
        raw = (raw > rng.uniform(-1.0, 1.0, d)) * 1.0
    if one.columns == "any units":
        raw = 10.0 ** rng.uniform(-3.0, 3.0, d) * (raw + rng.normal(size=d) * 3.0)
    plain = (raw - raw.mean(axis=0)) / raw.std(axis=0)
    y, noisy = _targets(one, [_score(one, plain, owner, rng) for _ in range(one.scores)], rng)
    rank = np.arange(len(owner)) - np.concatenate([[0], np.cumsum(counts)[:-1]])[owner]
    held = rank < 4
    return (
        replace(Cohort.from_arrays(raw[~held], noisy[~held], owner[~held]), schema=one.schema),
        replace(Cohort.from_arrays(raw[held], y[held], owner[held]), schema=one.schema),
    )


def _score(one: Case, plain: Array, owner: Array, rng: np.random.Generator) -> Array:
    """Return what features and users' levels say of every row."""
    told, (n, d) = one.told, (int(owner[-1]) + 1, plain.shape[1])
    directions = told.get("directions") or d
    common = _scaled(plain, np.broadcast_to(rng.normal(size=d), (n, d)), owner)
    turned = np.linalg.qr(rng.normal(size=(d, directions)))[0]
    personal = _scaled(plain, rng.normal(size=(n, directions)) @ turned.T, owner)
    rest = math.sqrt(1.0 - told["noise"] - told["levels"] - told["slopes"])
    signal = rest * common + math.sqrt(told["slopes"]) * personal
    return np.asarray(signal + math.sqrt(told["levels"]) * rng.normal(size=n)[owner])


def _targets(one: Case, scores: list[Array], rng: np.random.Generator) -> tuple[Array, Array]:
    """Return targets to score by and to learn from: numbers without and with noise, or classes and counts."""
    noise, size = one.told["noise"], len(scores[0])
    if one.loss == "poisson":
        unit, mean = math.log1p(1.0 / one.told["mean_count"]) / noise, one.told["mean_count"]
        counts = rng.poisson(mean * np.exp(math.sqrt(unit) * scores[0] - unit * (1.0 - noise) / 2.0)) * 1.0
        return counts, counts
    if one.loss == "logistic" and len(scores) == 1:
        classes = (scores[0] + math.sqrt(3.0 * noise) / math.pi * rng.logistic(size=size) > 0) * 1.0
        return classes, classes
    if one.loss == "logistic":
        noisy = [score + math.sqrt(6.0 * noise) / math.pi * rng.gumbel(size=size) for score in scores]
        several = np.argmax(noisy, axis=0) * 1.0
        return several, several
    plain = 50.0 + 7.0 * scores[0]
    return plain, plain + 7.0 * math.sqrt(noise) * rng.normal(size=size)


def _latent(kind: str, size: tuple[int, int], rng: np.random.Generator) -> Array:
    if kind == "heavy-tailed":
        return np.asarray(rng.standard_t(4, size=size) / math.sqrt(2.0))
    normal = rng.normal(size=size)
    if kind != "correlated":
        return normal
    shared = rng.normal(size=(size[0], 1))
    return np.asarray(math.sqrt(0.5) * normal + math.sqrt(0.5) * shared)


def _scaled(rows: Array, weights: Array, owner: Array) -> Array:
    """Return what weights make of rows, with variance one."""
    made = np.einsum("nd,nd->n", rows, weights[owner])
    return np.asarray(made / made.std())


def within(prediction: float, achieved: float) -> bool:
    """Whether a share is predicted within a factor of two, or two percentage points."""
    return abs(prediction - achieved) <= 0.02 or 0.5 <= prediction / max(achieved, 1e-9) <= 2.0


def report(found: dict[str, Any]) -> str:
    """Return the tables: shapes, then panels, those that the planner was developed on first."""
    text, total, kept = [], 0, 0
    for kind, title in (("shapes", "users × rows × features"), ("panels", "panel")):
        header = [title, "columns" if kind == "shapes" else "users", "simulated users"]
        header += [f"ε = {epsilon:g}: predicted (range) / achieved" for epsilon in EPSILONS]
        rows = []
        for name, result in found[kind].items():
            held = " (held out)" if result["held out"] else ""
            what = result["columns"] if kind == "shapes" else f"{result['shape']['users']:,}"
            cells = []
            for epsilon in EPSILONS:
                mean, low, high = (min(value, 1.0) for value in result["predicted"][f"{epsilon:g}"])
                reached = share(result["achieved"], epsilon)[0]
                good = within(mean, reached)
                total, kept = total + 1, kept + good
                cells.append(
                    f"{_shown(mean)} ({_shown(low)} to {_shown(high)}) / {_shown(reached)}{'' if good else ' ✗'}"
                )
            rows.append([name + held, what, f"{result['simulated users']:,}", *cells])
        if rows:
            text.append(table(header, rows))
    text.append(f"Within a factor of two or two percentage points: {kept} of {total}. ✗ marks the others.")
    return "\n\n".join(text)


def _shown(share: float) -> str:
    return f"{100.0 * share:.0f} %"


if __name__ == "__main__":
    main()
