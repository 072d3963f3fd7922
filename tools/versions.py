"""Put the documentation of this version beside that of others: ``make docs-version FOLDER=…``.

Every version is a site in ``FOLDER/VERSION``; ``versions.json`` names them, the newest first, and Material's menu in
the header reads it. ``index.html`` leads to the newest one. Any web server can serve the folder. The layout is that of
mike, which is not used: it keeps sites in a branch of the repository, commits and pushes, and a folder is enough here.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SEVERAL = "TACITLY_DOCS_VERSIONS"
"""Where this variable is set, pages get the menu of versions: it asks for ``../versions.json``."""

_LEAD = '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={0}/"><title>tacitly</title>\n'


def main() -> None:
    """Build this version's site and list it."""
    if len(sys.argv) != 2:
        sys.exit(f"usage: {Path(sys.argv[0]).name} FOLDER")
    folder = Path(sys.argv[1]).resolve()
    found = re.search(r'^version = "([^"]+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None
    build(folder / found[1])
    print(f"docs: {folder}/index.html leads to {listed(folder, found[1])[0]}")


def build(target: Path) -> None:
    """Build the site, with warnings as errors."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(target)]
    subprocess.run(command, cwd=ROOT, env={**os.environ, SEVERAL: "1", "NO_MKDOCS_2_WARNING": "1"}, check=True)


def listed(folder: Path, version: str) -> list[str]:
    """Add a version to the list, lead to the newest one, and return all, the newest first."""
    path = folder / "versions.json"
    known = {entry["version"] for entry in json.loads(path.read_text(encoding="utf-8"))} if path.exists() else set()
    newest_first = sorted({*known, version}, key=order, reverse=True)
    entries = [{"version": name, "title": name, "aliases": []} for name in newest_first]
    path.write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")
    (folder / "index.html").write_text(_LEAD.format(newest_first[0]), encoding="utf-8")
    return newest_first


def order(version: str) -> tuple[tuple[int, ...], bool, str]:
    """Return what versions are sorted by: numbers, then a release after what was published before it.

    >>> sorted(["0.10.0", "0.9.1", "0.10.0rc1"], key=order)
    ['0.9.1', '0.10.0rc1', '0.10.0']
    """
    numbers, rest = re.fullmatch(r"([\d.]*)(.*)", version).groups()  # type: ignore[union-attr]
    return tuple(int(part) for part in numbers.split(".") if part), not rest, rest


if __name__ == "__main__":
    main()
