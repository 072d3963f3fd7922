"""Turn the scripts of ``examples/`` into pages: the docstring is the introduction, comments between code are the text.

A script is read from top to bottom. The first line of its docstring is the title. A block of comment lines at the left
margin, with a blank line before it, becomes a paragraph; everything else is code. At the end stands what the script
printed: ``examples/outputs/NAME.txt``, written by ``python tools/outputs.py``.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
ORDER = [
    "quickstart",
    "wages",
    "test_scores",
    "doctor_visits",
    "films",
    "digits",
    "hospitals",
    "own_network",
    "two_sites",
]


def scripts() -> list[Path]:
    """Return the examples, the usual order first, then any others by name."""
    found = {path.stem: path for path in sorted(EXAMPLES.glob("*.py"))}
    return [found.pop(name) for name in ORDER if name in found] + list(found.values())


def introduction(path: Path) -> tuple[str, str]:
    """Return a script's title and the rest of its docstring, as Markdown."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or path.stem
    title, _, rest = text.partition("\n")
    return title.rstrip("."), markdown(rest.strip())


def markdown(text: str) -> str:
    """Return prose with code in single backticks."""
    return text.replace("``", "`")


def pieces(code: str) -> list[tuple[str, str]]:
    """Return a script without its docstring as a list of ("text", …) and ("code", …)."""
    tree = ast.parse(code)
    lines = code.splitlines()
    first = tree.body[0]
    start = (first.end_lineno or 0) if isinstance(first, ast.Expr) and ast.get_docstring(tree) else 0
    parts: list[tuple[str, list[str]]] = [("code", [])]
    for number, line in enumerate(lines[start:], start):
        above = lines[number - 1] if number else ""
        opens = line.startswith("# ") and not above.strip()
        goes_on = line.startswith("#") and parts[-1][0] == "text"
        kind = "text" if opens or goes_on else "code"
        if kind != parts[-1][0]:
            parts.append((kind, []))
        parts[-1][1].append(line)
    joined = [(kind, "\n".join(part).strip("\n")) for kind, part in parts]
    return [(kind, prose(part) if kind == "text" else part) for kind, part in joined if part.strip()]


def prose(comment: str) -> str:
    """Return a comment as a paragraph."""
    return markdown(" ".join(line.removeprefix("#").strip() for line in comment.splitlines()))


def page(path: Path) -> str:
    """Return the page of an example."""
    title, about = introduction(path)
    parts = [f"# {title}", about]
    for kind, part in pieces(path.read_text(encoding="utf-8")):
        parts.append(part if kind == "text" else f"```python\n{part}\n```")
    printed = EXAMPLES / "outputs" / f"{path.stem}.txt"
    if printed.exists():
        parts += [
            "## What it prints",
            "One run. Privacy noise comes from the operating system and cannot be seeded: your digits differ a little.",
            f"```text\n{printed.read_text(encoding='utf-8').rstrip()}\n```",
        ]
    parts.append(f"The script: [`examples/{path.name}`](../source/examples/{path.name}.md).")
    return "\n\n".join(part for part in parts if part) + "\n"


def index() -> str:
    """Return the page that lists the examples."""
    lines = [
        "# Examples",
        "Each is a script in `examples/` that runs in less than a minute on made-up data, and says so. Where a public "
        "panel has the same columns, give its path. Outputs are those of a real run.",
    ]
    rows = ["| example | what it shows |", "|---|---|"]
    for path in scripts():
        title, about = introduction(path)
        first = re.sub(r"\s+", " ", about.split("\n\n")[0]) if about else ""
        rows.append(f"| [{title}]({path.stem}.md) | {first} |")
    return "\n\n".join([*lines, "\n".join(rows)]) + "\n"
