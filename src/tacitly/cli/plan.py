"""Predict the accuracy for an ε and a number of users by simulation, without reading private data."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer

from tacitly.cli import console, reading
from tacitly.cli.console import say, wrapped
from tacitly.cli.help_pages import Command
from tacitly.methods import REGISTRY
from tacitly.methods.options import labels

if TYPE_CHECKING:
    from tacitly.planning import Plan

FeatureCount = Annotated[int | None, typer.Option(help="Numeric columns; a category with k levels counts as k - 1.")]
Noise = Annotated[float | None, typer.Option(help="Share of the target's variance that is noise; usual: 0.4.")]
Slopes = Annotated[float | None, typer.Option(help="Share due to slopes that differ between users; usual: 0.1.")]
Directions = Annotated[
    int | None, typer.Option(help="Directions in which users' slopes differ; default: all features.")
]
Between = Annotated[
    float | None, typer.Option(help="Share of the features' variance that lies between users; usual: 0.3.")
]
WithTarget = Annotated[
    bool, typer.Option("--with-target/--no-target", help="Whether the rows have a target; without: shared components.")
]
Loss = Annotated[str, typer.Option(help="squared for numbers, logistic for classes, poisson for counts.")]
Classes = Annotated[
    str | None, typer.Option(help="Number of classes; with --sample their labels, with commas: no,maybe,yes.")
]
MeanCount = Annotated[float | None, typer.Option(help="Mean of the counts, for --loss poisson; usual: 1.")]
SchemaFile = Annotated[
    Path | None, typer.Option(help="JSON file with public facts about columns, in place of --features.")
]
Sample = Annotated[
    Path | None, typer.Option(help="Table of public users, in place of --rows, --features and the shares.")
]
Methods = Annotated[str | None, typer.Option(help="Methods to simulate, with commas; default: all that fit the shape.")]


class PlanCommand(Command):
    """A command that explains what it needs if a table is passed to it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Refuse a table before Click asks for ``--users``."""
        if args and not args[0].startswith("-"):
            ctx.fail(
                f"plan reads no private table. Found {args[0]!r}. Describe it instead: tacitly plan --users 2000 "
                "--rows 5:20 --features 6. If its users are public: --users 2000 --sample TABLE --user ... --target ..."
            )
        return super().parse_args(ctx, args)


def plan(
    users: Annotated[int, typer.Option(help="Number of users.", show_default=False)],
    rows: Annotated[str | None, typer.Option(help="Rows per user: a number, or smallest:largest.")] = None,
    features: FeatureCount = None,
    noise: Noise = None,
    levels: Annotated[float | None, typer.Option(help="Share due to users' own levels; usual: 0.3.")] = None,
    slopes: Slopes = None,
    directions: Directions = None,
    between: Between = None,
    with_target: WithTarget = True,
    loss: Loss = "squared",
    classes: Classes = None,
    mean_count: MeanCount = None,
    schema: SchemaFile = None,
    sample: Sample = None,
    user: Annotated[str | None, typer.Option("--user", help="Sample: column with the user id.")] = None,
    target: Annotated[str | None, typer.Option("--target", help="Sample: column to predict.")] = None,
    exclude: reading.Exclude = None,
    epsilon: Annotated[str, typer.Option(help="Privacy budgets to simulate, with commas.")] = "0.1,0.3,1,3,10",
    delta: Annotated[float, typer.Option(help="Probability with which epsilon may fail.")] = 1e-6,
    adjacency: console.Neighbours = "zero-out",
    method: Methods = None,
    goal: Annotated[float, typer.Option(help="Share of the possible gain that is enough.")] = 0.9,
    repeats: Annotated[int, typer.Option(help="Number of repetitions of the simulation.")] = 3,
    seed: Annotated[int, typer.Option(help="Seed of the simulation.")] = 0,
    plot: Annotated[Path | None, typer.Option(help="Draw the plan into this PNG, SVG or PDF file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Predict the accuracy for an epsilon and a number of users, by simulation; no private cell is read."""
    from tacitly.planning import plan as planned

    given: dict[str, Any] = {"features": features, "noise": noise, "levels": levels, "slopes": slopes}
    given |= {"directions": directions, "between": between, "target": with_target, "mean_count": mean_count}
    given |= {"loss": loss, "classes": _classes(classes)}
    if rows is not None:
        given["rows"] = _rows(rows)
    if schema is not None:
        given["schema"] = _declared(schema)
    if sample is not None:
        given["sample"] = _read(sample, user, target, exclude, given["classes"])
        if _are_words(given["classes"]):
            given["classes"] = len(given["classes"])  # the cohort has their codes
    names = None if method is None else [name.strip() for name in method.split(",")]
    with _progress() as on_step:
        found = planned(
            users=users,
            **given,
            epsilons=_numbers(epsilon),
            delta=delta,
            adjacency=str(console.adjacency_of(adjacency)),
            methods=names,
            goal=goal,
            repeats=repeats,
            random_state=seed,
            on_step=on_step,
        )
    _print(found, plot, as_json=as_json)


def _print(found: Any, plot: Path | None, *, as_json: bool) -> None:
    if as_json:
        say(json.dumps(found.to_dict(), indent=1, ensure_ascii=False))
    else:
        _show(found)
    if plot is not None:
        found.plot(plot)
        say(f"picture: {plot}", err=as_json)


def _declared(path: Path) -> Any:
    from tacitly.data.schema import read_declared

    return read_declared(path)


def _rows(text: str) -> int | tuple[int, int]:
    """Read ``--rows``.

    >>> _rows("15"), _rows("5:20")
    (15, (5, 20))
    """
    low, colon, high = text.partition(":")
    try:
        return (int(low), int(high)) if colon else int(low)
    except ValueError:
        raise ValueError(f"--rows must be a number such as 15, or a range such as 5:20. Found {text!r}.") from None


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--epsilon must be numbers with commas, such as 0.3,1,3. Found {text!r}.") from None


def _classes(text: str | None) -> int | tuple[Any, ...] | None:
    """Read ``--classes``: the number of classes, or their labels.

    >>> _classes("3"), _classes("no,yes"), _classes(None)
    (3, ('no', 'yes'), None)
    """
    if text is None or text.isdecimal():
        return None if text is None else int(text)
    return tuple(labels(text))


def _are_words(classes: Any) -> bool:
    return isinstance(classes, tuple) and isinstance(classes[0], str)


def _read(table: Path, user: str | None, target: str | None, exclude: list[str] | None, classes: Any) -> Any:
    if user is None or target is None:
        raise ValueError("a --sample needs --user and --target: the columns with the ids and the values to predict.")
    source = reading.opened(table, user, None, None)
    words = classes if _are_words(classes) else ()
    columns = reading.Columns(user, target, None, reading.split_names(exclude), words)
    return reading.read_cohort(source, columns, {}, drop_missing=False, folder=None)


class _progress:
    """Show what is being simulated and how many fits are done, on stderr."""

    def __enter__(self) -> Any:
        self._status, self._done = console.status("simulating users"), 0
        self._compiling = console.compiling_is_said()
        self._shown = self._status.__enter__()
        self._compiling.__enter__()
        return self._step

    def __exit__(self, *error: Any) -> None:
        self._compiling.__exit__(*error)
        self._status.__exit__(*error)

    def _step(self, what: str) -> None:
        self._done += 1
        self._shown.update(f"simulating {what}: {self._done} done")


def _show(plan: Plan) -> None:
    from rich.console import Console

    from tacitly.planning.result import definition

    _tell(f"{plan.sentence()}\n\n{_assumed(plan)}")
    method = plan.recommended or plan.methods[0]
    say(f"\nShare of what is possible, {plan.shape.users:,} users, δ = {plan.delta:g}:")
    Console().print(_by_method(plan))
    say(f"{method}: share by number of users:")
    Console().print(_by_users(plan))
    _tell(f"{definition(plan.shape.loss)}\n{_errors(plan)}\n{_made_up(plan)}")
    if plan.recommended is not None:
        _tell(_advice(plan))
    if plan.left_out:
        _tell(f"Left out: {'; '.join(f'{name} ({why})' for name, why in plan.left_out.items())}.")


def _tell(text: str) -> None:
    """Print text wrapped so that no line ends inside "ε = 1" or "96 %"."""
    kept = re.sub(r"(\d) %", "\\1\N{NO-BREAK SPACE}%", text.replace("ε = ", "ε\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}"))
    say(wrapped(kept).replace("\N{NO-BREAK SPACE}", " "))


def _assumed(plan: Plan) -> str:
    shape = plan.shape
    if not shape.target:
        return (
            f"The variance of rows, as described: {shape.directions} shared components {1 - shape.noise:.0%}, noise "
            f"{shape.noise:.0%}.".replace("%", " %")
        )
    origin = {"described": "as described", "schema": "as described", "sample": "as in the sample"}[plan.source]
    shares = {"common to all": shape.common, "users' levels": shape.levels, "users' slopes": shape.slopes}
    parts = ", ".join(f"{name} {share:.0%}" for name, share in {**shares, "noise": shape.noise}.items())
    what = {"squared": "The target's variance", "logistic": "The variance behind the classes"}
    return f"{what.get(shape.loss, 'The variance of log counts')}, {origin}: {parts}.".replace("%", " %")


def _by_method(plan: Plan) -> Any:
    from rich.table import Table as Grid

    grid = Grid("method")
    for epsilon in plan.epsilons:
        grid.add_column(f"ε = {epsilon:g}", justify="right")
    for method in plan.methods:
        lines = [plan.line(epsilon, method=method) for epsilon in plan.epsilons]
        grid.add_row(method + " *" * (method == plan.recommended), *(_cell(line) for line in lines))
    return grid


def _by_users(plan: Plan) -> Any:
    from rich.table import Table as Grid

    from tacitly.planning.result import in_words

    method = plan.recommended or plan.methods[0]
    grid = Grid("users")
    for epsilon in plan.epsilons:
        grid.add_column(f"ε = {epsilon:g}", justify="right")
    for number in plan.user_numbers:
        lines = [plan.line(epsilon, users=number, method=method) for epsilon in plan.epsilons]
        grid.add_row(
            f"{number:,}", *(in_words(line.share) for line in lines), end_section=number == max(plan.user_numbers)
        )
    needed = [plan.needed[method][epsilon] for epsilon in plan.epsilons]
    goal = f"for {100 * plan.goal:.0f} %"
    grid.add_row(goal, *("-" if users is None else f"{users:,}" for users in needed))
    return grid


def _cell(line: Any) -> str:
    """Return the mean share and its range over the repetitions."""
    from tacitly.planning.result import in_words

    low, high = (max(0, round(100 * value)) for value in (line.low, line.high))
    return in_words(line.share) if low == high else f"{in_words(line.share)}\n{low} to {high}"


def _errors(plan: Plan) -> str:
    loss, noise = plan.shape.loss, f", noise {plan.shape.noise:.3g}" if plan.shape.loss == "squared" else ""
    kinds = {"logistic": "Shares of wrong classes", "poisson": "Poisson deviances"}
    numbers = "Squared errors as parts of the target's variance" if plan.shape.target else "Variance that is left over"
    return (
        f"{kinds.get(loss, numbers)}: users alone {plan.alone:.3g}, one model for all (not private) {plan.pooled:.3g}, "
        f"the best method without privacy {plan.possible:.3g}{noise}."
    )


def _made_up(plan: Plan) -> str:
    often = "once" if plan.repeats == 1 else f"{plan.repeats} times"
    made = f"{plan.simulated_users:,} users were simulated, {often} or more"
    if plan.simulated_users < plan.shape.users:
        made += f", with the noise that {plan.shape.users:,} users have"
    return f"{made}; ranges are from the smallest to the largest of these. Other numbers of users are interpolated."


def _advice(plan: Plan) -> str:
    best = str(plan.recommended)
    split = sorted(plan.splits[best].items(), key=lambda item: -item[1])
    large = [(name, share) for name, share in split if share >= 0.03]
    large.append(("the rest", 1.0 - sum(share for _, share in large)))
    parts = ", ".join(f"{name} {100 * share:.0f} %" for name, share in large if share >= 0.005)
    enough = next((line for e in plan.epsilons if (line := plan.line(e)).share >= plan.goal), None)
    command = "" if enough is None else f"\nNext: {_command(best, enough.epsilon, plan)}"
    return f"Recommended (*): {best}. Its budget: {parts}.{command}"


def _command(name: str, epsilon: float, plan: Plan) -> str:
    """Return the command that fits a method."""
    method = REGISTRY[name]
    words = ["tacitly", str(method.command), "TABLE", "--user ..."]
    words += ["--target ..."] if plan.shape.target else [f"--unit user --rank {plan.shape.directions}"]
    words += [] if plan.shape.loss == "squared" else [f"--loss {plan.shape.loss}"]
    words += ["--classes ..."] if plan.shape.loss == "logistic" else []
    words += [f"--epsilon {epsilon:g}"]
    words += [] if REGISTRY.default(str(method.command)).name == name else [f"--method {name} --rank auto"]
    return " ".join(words)
