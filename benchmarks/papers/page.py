"""Write docs/papers.md from items.toml and ``benchmarks/results``: ``python -m benchmarks.papers.page [--check]``."""

from __future__ import annotations

import ast
import json
import math
import re
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "papers.md"
STATUS = ("works", "partly", "not reproduced")
PLACE = re.compile(r"\{(\w+) ([^{}]+):([^:{}]+)\}")
KEYS = {"item", "where", "status", "because", "printed", "ours"}
TABLES = (  # of FedPower: every printed cell of the sets that are here
    (
        "table2",
        "Table 2 (p = 4, no noise, r = 5, columns on [0, 1]):",
        ("OPT", "sign-fixing", "vanilla", "DR-SVD", "UDA", "WDA"),
    ),
    (
        "table3",
        "Table 3 (ε₂ = 0.1, decaying p, r = 10, columns on [0, 1], δ = 0.01), ε₁ =",
        ("inf", "100", "10", "1", "0.1"),
    ),
)
HEADER = """# Which parts of the five papers are implemented, and do they reproduce the printed numbers?

{summary}
Each row below is an algorithm, option, baseline, table, figure or theorem of a paper, with

* **where**: the code, or the benchmark that measures it;
* **status**: *works*, *partly* or *not reproduced*, with the reason, or with what differs from the paper;
* **printed**: what the paper says. A figure without numbers in the text has none;
* **ours**: what we measured, from `benchmarks/results` ([when and how](#when-and-where-were-these-numbers-measured)).
  Printed numbers are compared only with runs on the paper's own data, or on data drawn as the paper draws them.

*As printed* means the paper's algorithm with its own constants (`mode="paper"`). *Sound* means a version whose ε is
proved and certified. [Attacks](audit.md#flaws-of-the-papers-caught) test the printed privacy claims.

`make generated` writes this page from [`benchmarks/papers/items.toml`](../benchmarks/papers/items.toml).
"""


THEORY = """## How many users and rows do I need, and how good are the theorems?

```python
import tacitly

need = tacitly.theory.how_many("private_fedrep", error=0.1, epsilon=1.0, features=50, rank=2)
need.users, need.rows, need.decided_by  # 374, 80, 'privacy'
```

`tacitly.theory` has a module for every paper. Constants that the papers do not specify are arguments, 1 by default. So
the numbers show how an error depends on n, d and ε, not how large it is. The figure compares them with measured errors:

![theorems and measured errors](images/theory.png)

{table}

With constant 1, the sampling term dominates Theorem 10. The measured error is due to noise; the Õ hides its clipping
bound, rounds and log(1/δ). CENTAUR's theorem is about the printed algorithm, whose clipping bound is fixed, and the
figure shows this algorithm. Our error decreases faster, because our bounds decrease with the gradients. FedPower's
error stops decreasing when only the server's noise is left, which is the same at every ε₁."""


RUN = """## When and where were these numbers measured?

Every file of results is written by one command. `make benchmarks` runs the commands that need no GPU, `make bench-gpu`
the others. If the code has changed since, the last column says what changed.

{table}"""
SINCE = {  # what changed in the measured code after these results; remove a line when its results are made again
    "centaur": "a row is left out with all its views when heads are shrunk; how `clip='auto'` finds a bound",
    "centaur_rounds": "how `clip='auto'` finds a bound",
    "centaur_starts": "how `clip='auto'` finds a bound",
}


def papers() -> list[dict[str, Any]]:
    """Return the papers with their items, FedPower's tables row by row."""
    found: list[dict[str, Any]] = tomllib.loads((HERE / "items.toml").read_text(encoding="utf-8"))["paper"]
    for paper in found:
        if paper["name"] == "FedPower":
            paper["item"] += list(table_rows())
    return found


def table_rows() -> list[dict[str, Any]]:
    """Return one item for every printed row of FedPower's Tables 2 and 3 that was run."""
    printed = json.loads((HERE / "printed.json").read_text(encoding="utf-8"))["FedPower"]
    ours, rows = _results("fedpower_tables"), []
    for part, title, columns in TABLES:
        for name, cells in printed[part].items():
            found = ours[part].get(name)
            row: dict[str, Any] = {
                "item": f"{title} {', '.join(columns)}: {name}".replace("inf", "∞"),
                "where": ["benchmarks/papers/fedpower_tables.py"],
                "printed": ", ".join(f"{cells[column][0]:.2e} ({cells[column][1]:.0e})" for column in columns),
            }
            if found is None:
                row |= {"status": "not reproduced", "because": "no draw was kept: 780 features take minutes each"}
            else:
                draws = [found[f"{column}, as theirs" if part == "table2" else column] for column in columns]
                row["ours"] = ", ".join(f"{np.mean(d):.2e} ({np.std(d):.0e})" for d in draws)
                row["ours"] += f"; {len(draws[0])} draws"
                worse = [c for c, d in zip(columns, draws, strict=True) if larger(d, *cells[c])]
                row["status"] = "partly" if worse else "works"
                better = [c for c, d in zip(columns, draws, strict=True) if smaller(d, *cells[c])]
                differ = {"larger": worse, "smaller": better}
                if said := [f"{how} than printed: {', '.join(names)}" for how, names in differ.items() if names]:
                    row["because"] = f"{'; '.join(said)}; fedpower.md says why"
            rows.append(row)
    return rows


def larger(draws: list[float], mean: float, deviation: float) -> bool:
    """Return whether our errors exceed the printed ones by a quarter and two deviations; 1e-4 is converged."""
    ours = float(np.mean(draws))
    return ours > max(1e-4, 1.25 * mean, mean + 2 * math.hypot(deviation, float(np.std(draws))))


def smaller(draws: list[float], mean: float, deviation: float) -> bool:
    """Return whether our errors are below half of the printed ones and two deviations apart; 1e-4 is converged."""
    ours = float(np.mean(draws))
    return mean > 1e-4 and ours < min(0.5 * mean, mean - 2 * math.hypot(deviation, float(np.std(draws))))


def problems(item: dict[str, Any]) -> list[str]:
    """Return what is wrong with an item: keys, status, reasons, places that do not exist."""
    name = item.get("item", "an item without a name")
    found = [f"{name}: unknown key {key!r}" for key in sorted(set(item) - KEYS)]
    if item.get("status") not in STATUS:
        found.append(f"{name}: status must be one of {STATUS}. Found {item.get('status')!r}.")
    if item.get("status") in STATUS[1:] and not item.get("because"):
        found.append(f"{name}: {item['status']} needs a reason in `because`.")
    if not item.get("where"):
        found.append(f"{name}: `where` is missing.")
    for place in item.get("where", []):
        path, _, definition = _resolved(place).partition("::")
        if not (ROOT / path).is_file():
            found.append(f"{name}: {path} does not exist.")
        elif definition and definition not in definitions(ROOT / path):
            found.append(f"{name}: {path} does not define {definition}.")
    return found


def text() -> str:
    """Return the page."""
    parts, counts = [], dict.fromkeys(STATUS, 0)
    for paper in papers():
        lines = ["| item | where | status | printed | ours |", "|---|---|---|---|---|"]
        for item in paper["item"]:
            counts[item["status"]] += 1
            status = item["status"] + (f": {item['because']}" if item.get("because") else "")
            where = ", ".join(_link(place) for place in item["where"])
            cells = (item["item"], where, status, item.get("printed", "–"), filled(item.get("ours", "–")))
            lines.append("| " + " | ".join(cells) + " |")
        title = f"## {paper['name']}\n\n{paper['cite']}. How to use it: [{paper['page']}]({paper['page']}).\n\n"
        parts.append(title + "\n".join(lines))
    summary = (
        f"Of {sum(counts.values())} items of five papers {counts['works']} work, {counts['partly']} work in part, and "
        f"{counts[STATUS[2]]} are not reproduced, mostly because we do not have the data."
    )
    parts.append(THEORY.format(table=(RESULTS / "theory.md").read_text(encoding="utf-8").strip()))
    parts.append(RUN.format(table=runs()))
    return HEADER.format(summary=summary) + "\n" + "\n\n".join(parts) + "\n"


def quoted() -> set[str]:
    """Return the results files whose numbers are on the page."""
    texts = [item.get("ours", "") for paper in papers() for item in paper["item"]]
    return {match[1] for text in texts for match in PLACE.finditer(text)} | {"fedpower_tables", "theory"}


def runs() -> str:
    """Return a table of the quoted results: the command that writes them (of the same name), date and machine."""
    lines = ["| command | date | machine | changed since |", "|---|---|---|---|"]
    for name in sorted(quoted()):
        found = _results(name)
        assert (HERE / f"{name}.py").is_file(), name
        cells = (f"`python -m benchmarks.papers.{name}`", dated(found), found["machine"], SINCE.get(name, "–"))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def dated(found: dict[str, Any]) -> str:
    """Return the date of results, and of the parts that were measured earlier."""
    earlier: dict[str, list[str]] = {}
    for part, date in found.get("dates", {}).items():
        if date != found["date"]:
            earlier.setdefault(date, []).append(part)
    return "; ".join([found["date"], *(f"{', '.join(parts)}: {date}" for date, parts in sorted(earlier.items()))])


def filled(template: str) -> str:
    """Return a text with {file path:format} replaced by numbers of ``benchmarks/results``."""
    return PLACE.sub(lambda m: format(_value(m[1], m[2]), m[3]), template)


def _value(file: str, path: str) -> float:
    here = _results(file)
    for step in _steps(path):
        if step.startswith("["):
            wanted = [part.split("=", 1) for part in step[1:-1].split(";")]
            here = [row for row in here if all(str(row[key]) == value for key, value in wanted)]
        else:
            here = [row[step] for row in here] if isinstance(here, list) else here[step]
    numbers = np.asarray(here, dtype=float)
    if not numbers.size:
        raise ValueError(f"{file}.json has nothing at {path!r}.")
    return float(numbers.mean())


def _steps(path: str) -> list[str]:
    """Split a path at slashes outside of brackets."""
    return re.findall(r"\[[^\]]*\]|[^/]+", path)


@cache
def _results(file: str) -> Any:
    return json.loads((RESULTS / f"{file}.json").read_text(encoding="utf-8"))


def _resolved(place: str) -> str:
    return place.replace("{src}", "src/tacitly")


def _link(place: str) -> str:
    path, _, name = _resolved(place).partition("::")
    target = Path(path).relative_to("docs") if path.startswith("docs/") else Path("..") / path
    return f"[`{name or Path(path).name}`]({target.as_posix()})"


@cache
def definitions(path: Path) -> frozenset[str]:
    """Return the names of a module's functions, classes, methods and constants."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{part.name}" for part in node.body if isinstance(part, ast.FunctionDef)}
        if isinstance(node, ast.AnnAssign | ast.Assign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return frozenset(found)


def main() -> None:
    """Write the page, or check it."""
    wrong = [problem for paper in papers() for item in paper["item"] for problem in problems(item)]
    if wrong:
        sys.exit("\n".join(wrong))
    if "--check" not in sys.argv:
        PAGE.write_text(text(), encoding="utf-8")
    elif not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != text():
        sys.exit("docs/papers.md is out of date. Run make generated.")


if __name__ == "__main__":
    main()
