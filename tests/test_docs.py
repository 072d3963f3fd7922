"""Pages say what is true: links lead somewhere, functions exist, Python blocks run."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from benchmarks.papers.page import definitions

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def headings(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
        if link.startswith("http"):
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        assert not anchor or anchor in headings(target), link


def test_every_function_of_the_tour_is_where_it_is_said_to_be() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = re.findall(r"\[`([\w.]+)`\]\(\.\./(src/[\w/]+\.py)\)", text)
    assert len(named) > 20
    for name, file in named:
        assert name in definitions(ROOT / file), (name, file)


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_papers_are_named_not_numbered(page: Path) -> None:
    written = re.sub(r"<!-- (\S.*?) -->\n.*?<!-- end \1 -->", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert not re.search(r"[Pp]aper 00\d", written)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_lists_and_tables_start_after_an_empty_line(page: Path) -> None:
    """Or the site shows their asterisks and bars in a paragraph, though GitHub shows a list."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    assert re.findall(r"^(?![\s|#<]|[*] |\d+[.] ).+\n(?=[*] |[|] |1[.] )", text, flags=re.MULTILINE) == []


def python_blocks() -> dict[str, str]:
    """Return every Python block of every page, by page and number."""
    found = {}
    for page in PAGES:
        blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        found |= {f"{page.name} {number}": block for number, block in enumerate(blocks, 1)}
    return found


@pytest.mark.parametrize("name", python_blocks())
def test_every_python_block_runs_as_printed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """None ran: no data, no import. A block is copied alone, so it must stand alone."""
    monkeypatch.chdir(tmp_path)
    try:
        exec(compile(python_blocks()[name], name, "exec"), {})
    finally:
        if "ray" in sys.modules:
            sys.modules["ray"].shutdown()


def commands() -> list[tuple[str, str, bool]]:
    """Return every command that a page shows, and whether it is whole: in a block, not in a sentence."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        blocks = "\n".join(re.findall(r"^```(?:sh|console)?\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE))
        lines = re.findall(r"^ *(?:\$ )?tacitly (.*)$", blocks.replace("\\\n", " "), flags=re.MULTILINE)
        found += [(page.name, re.split(r"  #| \| ", line)[0], True) for line in lines]
        inline = re.findall(r"`tacitly ([a-z]+ [^`]*--[^`…]*)`", text)
        found += [(page.name, line, False) for line in inline if not re.search(r"[|\[]|\.\.\.|your-", line)]
    return found


def test_every_command_shown_is_understood() -> None:
    """It has these options, and a whole one needs no others; nothing is run."""
    import shlex

    import click
    import typer.main

    from tacitly.cli.main import app

    group, known = typer.main.get_command(app), commands()
    assert len(known) > 30
    for page, line, whole in known:
        words, command = shlex.split(line), group
        try:
            while isinstance(command, click.Group):
                command = command.commands[words.pop(0)]
            command.make_context("tacitly", words)
        except click.exceptions.Exit:
            pass  # --help
        except (click.ClickException, KeyError) as error:
            if not whole and not isinstance(error, KeyError | click.NoSuchOption):
                continue
            pytest.fail(f"{page}: tacitly {line}: {getattr(error, 'message', error)!s}")


def test_the_deployment_guide_is_what_the_example_runs() -> None:
    """And that one runs as a test, with real processes: tests/test_benchmarks.py."""
    guide = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8").partition("## Flower")[2].partition("\n### ")[0]
    blocks = re.findall(r"```sh\n(.*?)```", guide, flags=re.DOTALL)
    example = (ROOT / "examples" / "two_sites.py").read_text(encoding="utf-8")
    run = re.findall(r'"(tacitly [^"]+)"', example)
    assert "".join(blocks).splitlines() == run


def test_nothing_has_the_name_that_another_package_has() -> None:
    patterns = ("*.md", "*.toml", "src/**/*.py", "docs/*.md", "examples/*.py")
    files = [path for pattern in patterns for path in ROOT.glob(pattern)]
    files = [path for path in files if path.name != "CHANGELOG.md"]  # which says what the old name was
    assert len(files) > 100
    assert [path.name for path in files if re.search(r"\btacit\b", path.read_text(encoding="utf-8"))] == []
