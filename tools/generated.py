"""Write what is generated from the method registry, or check that it is up to date.

``python tools/generated.py`` (``make generated``) rewrites the blocks between markers; ``--check`` writes nothing and
fails if a block is out of date. The blocks: the imports of estimators that type checkers read in
``src/tacitly/__init__.py`` and ``src/tacitly/neural/__init__.py`` (between ``# <methods>`` and ``# </methods>``), and
in README.md and docs/*.md the tables between ``<!-- methods -->`` and ``<!-- /methods -->`` (all methods) and between
``<!-- engines -->`` and ``<!-- /engines -->`` (what runs where).
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "src"))

from tacitly.methods import REGISTRY  # noqa: E402
from tacitly.methods.registry import Method  # noqa: E402


def imports(*, networks: bool) -> str:
    """Return the imports of estimators for type checkers."""
    homes = {name: home for m in REGISTRY.values() if m.network is networks for name, home in m.homes.items()}
    lines = sorted(f"    from {home} import {name} as {name}\n" for name, home in homes.items())
    return "if TYPE_CHECKING:\n" + "".join(lines)


def methods_table(pages: str) -> str:
    """Return the table of all methods; ``pages`` is where the documentation lies as seen from the file."""
    lines = ["| you have | you get | command |", "|---|---|---|"]
    for method in REGISTRY.values():
        page = f"[`{method.public_name}`]({pages}{method.page})"
        lines.append(f"| {method.data} | {page}: {method.result} | {_command(method)} |")
    return "\n".join(lines) + "\n"


def engines_table() -> str:
    """Return the table that says which engine runs which method."""
    lines = ["| | local | GPU | Ray | Flower, `--trust central` | `node`, `secure` |", "|---|---|---|---|---|---|"]
    alike: dict[str, list[str]] = {}  # methods that run alike share a row
    for method in REGISTRY.values():
        cells = [
            *(_runs(method, engine, engine) for engine in ("local", "cuda", "ray", "flower")),
            _runs(method, "flower", "node"),
        ]
        alike.setdefault(" | ".join(cells), []).append(f"`{method.public_name}`")
    lines += [f"| {', '.join(names)} | {cells} |" for cells, names in alike.items()]
    return "\n".join(lines) + "\n"


def _command(method: Method) -> str:
    if method.command is None:
        return "Python"
    if len(REGISTRY.offered(method.command)) == 1 or method.default:
        return f"`tacitly {method.command}`"
    return f"`tacitly {method.command} --method {method.name}`"


def _runs(method: Method, engine: str, trust: str) -> str:
    if engine not in method.engines:
        return "no"
    return method.limits.get(trust, "yes")


def blocks() -> dict[Path, dict[str, str]]:
    """Return what stands between which markers of which file."""
    source = ROOT / "src" / "tacitly"
    made = {
        source / "__init__.py": {"methods": imports(networks=False)},
        source / "neural" / "__init__.py": {"methods": imports(networks=True)},
    }
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        pages = "docs/" if page.parent == ROOT else ""
        made[page] = {"methods": methods_table(pages), "engines": engines_table()}
    return made


def regenerated(text: str, block: dict[str, str], *, python: bool) -> str:
    """Return a file's text with its blocks made anew; a file without a marker stays as it is."""
    for name, content in block.items():
        start, end = (f"# <{name}>\n", f"# </{name}>") if python else (f"<!-- {name} -->\n", f"<!-- /{name} -->")
        between = re.compile(re.escape(start) + ".*?" + re.escape(end), re.DOTALL)
        text = between.sub(lambda _, new=start + content + end: new, text)  # type: ignore[misc]
    return text


def outdated() -> dict[Path, str]:
    """Return the new text of each file that is not up to date."""
    found = {}
    for path, block in blocks().items():
        text = path.read_text(encoding="utf-8")
        new = regenerated(text, block, python=path.suffix == ".py")
        if new != text:
            found[path] = new
    return found


def main() -> None:
    """Write, or check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file is out of date")
    check = parser.parse_args().check
    changed = outdated()
    for path, text in changed.items():
        print(f"{path.relative_to(ROOT)} {'is out of date: run make generated' if check else 'written'}")
        if not check:
            path.write_text(text, encoding="utf-8")
    raise SystemExit(1 if check and changed else 0)


if __name__ == "__main__":
    main()
