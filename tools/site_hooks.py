"""What the documentation site adds to the pages in ``docs/`` (MkDocs calls the functions that start with ``on_``).

* Examples become pages: :mod:`tools.gallery` renders ``examples/*.py`` with the output of a real run.
* :mod:`tools.reference` writes the reference: docstrings by mkdocstrings, commands from their help.
* CONTRIBUTING.md, SECURITY.md and CHANGELOG.md are pages too, with their links turned round.
* A link into the repository (``../src/…``, ``../benchmarks/…``) leads to a page with that file, so that the site works
  without a network and no link leaves it.
* ``extra.slots`` in mkdocs.yml names pages that may be missing from ``docs/``; the navigation then leaves them out.
"""

from __future__ import annotations

import os
import posixpath
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from tools import gallery, reference, versions  # noqa: E402

ROOT_PAGES = {"CONTRIBUTING.md": "contributing.md", "SECURITY.md": "security.md", "CHANGELOG.md": "changelog.md"}
LANGUAGES = {".py": "python", ".json": "json", ".yml": "yaml", ".toml": "toml"}
LINK = re.compile(r"(?<=\]\()([^)\s]+)(?=\))")
PALETTE = re.compile(r'(<form [^>]*data-md-component="palette"[^>]*>)(.*?)(</form>)', re.DOTALL)
FENCED = re.compile(r"^( *)(```+).*?^\1\2 *$", re.DOTALL | re.MULTILINE)


def on_config(config: Any) -> Any:
    """Put the version into the header, the examples into the navigation, and leave missing slots out of it."""
    from tacitly import __version__

    if versions.SEVERAL in os.environ:  # then the menu of versions shows it
        config.extra["version"] = {"provider": "mike"}
    else:
        config.site_name = f"{config.site_name} {__version__}"
    absent = [name for name in config.extra.get("slots", ()) if not (ROOT / "docs" / name).exists()]
    config.nav = [_section(section, absent) for section in config.nav]
    return config


def _section(section: dict[str, Any], absent: list[str]) -> dict[str, Any]:
    ((title, pages),) = section.items()
    if pages == "EXAMPLES":
        pages = ["examples/index.md", *(f"examples/{path.stem}.md" for path in gallery.scripts())]
    if pages == "REFERENCE":
        pages = ["api.md", *(f"reference/{group}.md" for group in reference.GROUPS), "commands.md"]
    return {title: [page for page in pages if address(page) not in absent]}


def address(page: str | dict[str, str]) -> str:
    """Return the file of an entry of the navigation, which may have a title."""
    return page if isinstance(page, str) else next(iter(page.values()))


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are made from other files of the repository."""
    from mkdocs.structure.files import File

    def add(name: str, content: str) -> None:
        files.append(File.generated(config, name, content=content))

    for name, content in reference.pages().items():
        add(name, content)
    add("examples/index.md", gallery.index())
    for path in gallery.scripts():
        add(f"examples/{path.stem}.md", gallery.page(path))
    for source, name in ROOT_PAGES.items():
        add(name, from_root((ROOT / source).read_text(encoding="utf-8")))
    for path in gallery.scripts():
        add(f"source/examples/{path.name}.md", source_page(path))
    for path in linked_sources():
        add(f"source/{path}.md", source_page(ROOT / path))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lead links into the repository to pages of the site."""
    return retargeted(markdown, posixpath.dirname(page.file.src_uri))


def on_post_page(output: str, **_: Any) -> str:
    """Name the two radio buttons of the colour scheme as a group, for screen readers."""
    return PALETTE.sub(r'\1<div role="radiogroup" aria-label="Colour scheme">\2</div>\3', output)


def from_root(text: str) -> str:
    """Return a page of the repository's root as one of ``docs/``: the same links, seen from there."""
    return outside_code(text, lambda link: link if _is_elsewhere(link) else f"../{link}")


def retargeted(text: str, folder: str) -> str:
    """Return Markdown whose links to files outside ``docs/`` lead to pages of the site; ``folder`` is the page's."""

    def target(link: str) -> str:
        if _is_elsewhere(link):
            return link
        name, mark, anchor = link.partition("#")
        path = posixpath.normpath(posixpath.join("docs", folder, name))
        if path == "README.md":  # whose place the start page takes, with other headings
            mark = anchor = ""
        return os.path.relpath(page_of(path), folder or ".") + mark + anchor

    return outside_code(text, target)


def page_of(path: str) -> str:
    """Return the site's page for a file or folder of the repository."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path.startswith("examples/") and path.endswith(".py"):
        return path.removesuffix(".py") + ".md"
    return {**ROOT_PAGES, "README.md": "index.md", "examples": "examples/index.md"}.get(path, f"source/{path}.md")


def _is_elsewhere(link: str) -> bool:
    return link.startswith(("#", "http:", "https:", "mailto:"))


def outside_code(text: str, change: Any) -> str:
    """Return Markdown with every link outside code blocks replaced by ``change(link)``."""
    parts, last = [], 0
    for block in FENCED.finditer(text):
        parts += [LINK.sub(lambda found: change(found[1]), text[last : block.start()]), block[0]]
        last = block.end()
    return "".join([*parts, LINK.sub(lambda found: change(found[1]), text[last:])])


def linked_sources() -> list[str]:
    """Return the files and folders of the repository that pages link to and that are no pages themselves."""
    found: set[str] = set()
    texts = [("docs", path.read_text(encoding="utf-8")) for path in sorted((ROOT / "docs").glob("*.md"))]
    texts += [(".", (ROOT / name).read_text(encoding="utf-8")) for name in ROOT_PAGES]
    texts += [("docs/examples", gallery.page(path)) for path in gallery.scripts()]
    for folder, text in texts:
        for link in LINK.findall(FENCED.sub("", text)):
            path = posixpath.normpath(posixpath.join(folder, link.partition("#")[0]))
            if not _is_elsewhere(link) and not path.startswith("docs/") and page_of(path).startswith("source/"):
                found.add(path)
    folders = [path for path in found if (ROOT / path).is_dir()]
    for folder in folders:
        found |= {str(path.relative_to(ROOT)) for path in (ROOT / folder).iterdir() if path.suffix in (".py", ".md")}
    return sorted(found)


def source_page(path: Path) -> str:
    """Return a page that shows a file of the repository, or lists a folder; the search leaves it out."""
    name = path.relative_to(ROOT).as_posix()
    head = f"---\ntitle: {name}\nsearch:\n  exclude: true\n---\n\n# `{name}`\n\n"
    if path.is_dir():
        inside = sorted(p for p in path.iterdir() if p.suffix in (".py", ".md"))
        return head + "".join(f"* [`{p.name}`]({path.name}/{p.name}.md)\n" for p in inside)
    text = path.read_text(encoding="utf-8")
    fence = "`" * (3 + max((len(run) for run in re.findall("`{3,}", text)), default=0))
    return f"{head}{fence}{LANGUAGES.get(path.suffix, 'text')}\n{text.rstrip()}\n{fence}\n"
