"""Run what pages show and write what it printed: ``python tools/outputs.py [NAME ...] [--check]``.

Two kinds of output are shown. ``console`` blocks of ``docs/*.md``: each line after ``$ `` is run, all blocks of a page
in one empty folder, and what it prints replaces the lines below it. Examples: ``examples/outputs/NAME.txt`` holds what
``examples/NAME.py`` printed. With names (``tutorial``, ``wages``) only those are run.

Privacy noise cannot be seeded, so two runs never print the same digits. ``--check`` (and the tests) compare what is
left when numbers are blotted out.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from tools import gallery  # noqa: E402

BLOCK = re.compile(r"(?P<mark><!-- (?:needs (?P<needs>\S+)|slow) -->\n)?```console\n(?P<lines>.*?)```", re.DOTALL)
"""A block of commands; one that needs a file that is not shipped stays as it is where that file is missing. One that is
marked as slow is run by this program, not by the tests."""

PANELS = Path(os.environ.get("TACITLY_DATA", ROOT.parent / "shared" / "data")) / "panels"
APART = ("two_sites",)  # starts processes of its own, whose lines come in any order: run by name only, not compared
COEFFICIENT = re.compile(r"\S+00\[00\]0")  # a line of a summary: noise may leave a column or a level out
WIDTH = 100
EXAMPLES_OUT = ROOT / "examples" / "outputs"


def console_pages() -> list[Path]:
    """Return the pages with outputs of commands."""
    return [path for path in sorted((ROOT / "docs").glob("*.md")) if BLOCK.search(path.read_text(encoding="utf-8"))]


def rerun(text: str, folder: Path, *, marked: bool = True) -> str:
    """Return a page's text with the outputs of its commands, run one after the other in ``folder``.

    Blocks that need a panel or are slow stay as they are without ``marked``, or where the panel is missing.
    """
    with _inside(folder):
        return BLOCK.sub(lambda block: _transcript(block, marked=marked), text)


def _transcript(block: re.Match[str], *, marked: bool) -> str:
    needs, lines = block["needs"], []
    if (block["mark"] and not marked) or (needs and not (PANELS / needs).exists()):
        return block[0]
    if needs:
        shutil.copy(PANELS / needs, needs)
    for line in block["lines"].splitlines():
        if line.startswith("$ "):
            lines += [line, *answer(line[2:]).splitlines()]
    shown = "\n".join(lines)
    return f"{block['mark'] or ''}```console\n{shown}\n```"


def answer(command: str) -> str:
    """Return what a command prints; ``tacitly`` runs in this process, which imports it once."""
    command, pipe, rest = command.partition(" | ")
    words = shlex.split(command)
    if words[0] == "tacitly":
        found = _tacitly(words[1:]).replace(os.environ["TACITLY_HOME"], "~/.local/state/tacitly")
        return subprocess.run(rest, shell=True, input=found, capture_output=True, text=True).stdout if pipe else found
    if words[0] == "python" and words[1] == "-c":
        return printed(lambda: exec(compile(words[2], "<page>", "exec"), {}))
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    return done.stdout


def _tacitly(words: list[str]) -> str:
    from tacitly.cli import main as command

    def run() -> None:
        before, sys.argv = sys.argv, ["tacitly", *words]
        try:
            command.main()
        except SystemExit as end:
            if end.code not in (0, None):
                raise RuntimeError(f"tacitly {' '.join(words)} ended with {end.code}") from end
        finally:
            sys.argv = before

    return printed(run)


def example(path: Path, *words: str) -> str:
    """Return what an example prints, given these arguments."""
    if path.stem in APART:
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        done = subprocess.run([sys.executable, path], capture_output=True, text=True, check=True, env=environment)
        return done.stdout

    def run() -> None:
        before, sys.argv = sys.argv, [str(path), *words]
        try:
            runpy.run_path(str(path), run_name="__main__")
        finally:
            sys.argv = before

    return printed(run)


def printed(run: object) -> str:
    """Return what a function writes to the standard output."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        run()  # type: ignore[operator]
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n" if out.getvalue() else ""


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    """Run in a folder, with a state folder of its own and lines of one width."""
    before, there = dict(os.environ), Path.cwd()
    os.environ |= {"TACITLY_HOME": str(folder / ".state"), "COLUMNS": str(WIDTH), "NO_COLOR": "1"}
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(there)
        os.environ.clear()
        os.environ.update(before)


def shape(text: str) -> str:
    """Return a text without what noise decides: numbers, where lines are wrapped, which columns a summary lists."""
    text = re.sub(r"\b[0-9a-f]{16,64}\b", "0", text)
    lines = [re.sub(r"[-+]?\d[\d,.]*(?:e[-+]?\d+)?\d*", "0", line) for line in text.splitlines()]
    lines = [re.sub(r"[\s─━═┏┓┗┛┡┩└┘┳┻┴┬╇]+", "", line) for line in lines]
    return "".join(line for line in lines if not COEFFICIENT.fullmatch(line))


def main() -> None:
    """Write the outputs, or compare them with new ones."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="pages and examples, by name; default: all")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if outputs differ in more than digits"
    )
    asked = parser.parse_args()
    different = []
    for path, old, new in _all(asked.names):
        if asked.check:
            different += [path.name] if shape(new) != shape(old) else []
        else:
            path.write_text(new, encoding="utf-8")
            print(f"{path.relative_to(ROOT)} written")
    if different:
        raise SystemExit(f"outputs differ from those shown: {', '.join(different)}. Run python tools/outputs.py.")


def _all(names: list[str]) -> Iterator[tuple[Path, str, str]]:
    for page in console_pages():
        if not names or page.stem in names:
            text = page.read_text(encoding="utf-8")
            with tempfile.TemporaryDirectory() as folder:
                yield page, text, rerun(text, Path(folder))
    for path in gallery.scripts():
        if path.stem in names or (not names and path.stem not in APART):
            kept = EXAMPLES_OUT / f"{path.stem}.txt"
            yield kept, kept.read_text(encoding="utf-8") if kept.exists() else "", example(path)


if __name__ == "__main__":
    main()
