"""Copy the tables of ``benchmarks/results`` into README and docs: ``python -m benchmarks.readme [--check]``."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from benchmarks.tables import RESULTS

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def parts() -> dict[str, str]:
    """Return every results file by name, and the parts of a file with several as NAME 1, NAME 2, ..."""
    found = {}
    for path in sorted(RESULTS.glob("*.md")):
        text = path.read_text(encoding="utf-8").strip()
        found[path.stem] = text
        found |= {f"{path.stem} {i}": part for i, part in enumerate(text.split("\n\n"), start=1)}
    return found


def filled(text: str) -> str:
    for name, content in parts().items():
        marked = re.compile(rf"<!-- {name} -->\n(?:.*?<!-- end {name} -->\n)?", re.DOTALL)
        text = marked.sub(lambda _, n=name, c=content: f"<!-- {n} -->\n{c}\n<!-- end {n} -->\n", text)
    return text


if __name__ == "__main__":
    for page in PAGES:
        current = page.read_text(encoding="utf-8")
        if "--check" not in sys.argv:
            page.write_text(filled(current), encoding="utf-8")
        elif filled(current) != current:
            sys.exit(f"{page.name} differs from benchmarks/results. Run python -m benchmarks.readme.")
