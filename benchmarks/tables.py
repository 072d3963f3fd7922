"""Print results as a Markdown table, and write them to ``benchmarks/results`` as Markdown and JSON."""

from __future__ import annotations

import datetime
import json
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
IMAGES = Path(__file__).parents[1] / "docs" / "images"


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return a Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(_cell(value) for value in row) + " |" for row in rows]
    return "\n".join(lines)


def keep(name: str, data: dict[str, Any], text: str, *, quick: bool) -> None:
    """Print a table and, unless this is a quick run, write it and its data to ``benchmarks/results``."""
    print(text)
    if quick:
        return
    RESULTS.mkdir(exist_ok=True)
    machine = f"{len(os.sched_getaffinity(0))} cores, {_processor()}, Python {platform.python_version()}"
    data = {**data, "machine": machine, "date": today()}
    (RESULTS / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    (RESULTS / f"{name}.md").write_text(text + "\n", encoding="utf-8")


def today() -> str:
    """Return the date, for results that are measured in parts."""
    return datetime.datetime.now(datetime.UTC).date().isoformat()


@dataclass(frozen=True)
class Pieces:
    """What pieces of a long run found, written to a file one by one: a run that was stopped goes on from there.

    Delete the file when the code has changed. Without a path nothing is written.
    """

    path: Path | None = None

    def __call__(self, name: str, measure: Callable[[], Any]) -> Any:
        """Return what is in the file under this name, or measure it."""
        found = json.loads(self.path.read_text()) if self.path is not None and self.path.exists() else {}
        if name not in found:
            found[name] = measure()
            if self.path is not None:
                self.path.write_text(json.dumps(found), encoding="utf-8")
        return found[name]


def _processor() -> str:
    """Return the processor's name, where the system tells it."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]}, {platform.machine()}" if names else platform.machine()


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    return str(value)
