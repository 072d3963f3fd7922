"""A progress bar for fits: finished releases, and ε spent so far."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tacitly.neural.centaur.estimator import Centaur
from tacitly.privacy.accounting import compose


@contextmanager
def progress(model: Centaur) -> Iterator[Callable[[str], None]]:
    """Show a bar while ``model`` is fitted: ``with progress(model) as report: model.fit(…, on_release=report)``.

    ε is that of the releases so far; under sampling, where composing takes seconds, it is shown only at the end.

    >>> import torch; from tacitly.neural import mlp
    >>> with progress(Centaur(*mlp(3, (2,), 2), epsilon=1.0, rounds=2)) as report:
    ...     report("body update 1")
    """
    from rich.console import Console
    from rich.progress import Progress

    budget = model._budget()
    events = model._events(model._plan(budget))
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("ε = 0", total=len(events))
        done = 0

        def report(name: str) -> None:
            nonlocal done
            done += 1
            text = name
            if budget.private and (model.sampling_rate == 1.0 or done == len(events)):
                text = f"{name}, ε = {compose(events[:done], budget.adjacency, budget.delta):.3f}"
            bar.update(task, advance=1, description=text)

        yield report
