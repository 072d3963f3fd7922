"""Put the tables of ``benchmarks/results`` into the README: ``python -m benchmarks.readme`` (``--check`` for tests)."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from benchmarks.tables import RESULTS

README = Path(__file__).parents[1] / "README.md"


def parts() -> dict[str, str]:
    families, frontier = (RESULTS / "families.md").read_text(encoding="utf-8").strip().split("\n\n")
    return {
        "private_fedrep": (RESULTS / "private_fedrep.md").read_text(encoding="utf-8").strip(),
        "families": families,
        "frontier": frontier,
        "speed": (RESULTS / "speed_round.md").read_text(encoding="utf-8").strip(),
    }


def filled(text: str) -> str:
    for name, content in parts().items():
        marked = re.compile(rf"<!-- {name} -->\n(?:.*?<!-- end {name} -->\n)?", re.DOTALL)
        text = marked.sub(lambda _, n=name, c=content: f"<!-- {n} -->\n{c}\n<!-- end {n} -->\n", text)
    return text


if __name__ == "__main__":
    current = README.read_text(encoding="utf-8")
    if "--check" in sys.argv:
        if filled(current) != current:
            sys.exit("README.md differs from benchmarks/results. Run python -m benchmarks.readme.")
        sys.exit(0)
    README.write_text(filled(current), encoding="utf-8")
