"""Make our docstrings readable as Markdown, before mkdocstrings renders them (an extension of Griffe)."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension

ROLE = re.compile(r":(?:class|func|meth|mod|data|attr):`~?(?:[^`<]*<)?(?:[\w.]*\.)?(\w+)>?`")

SECTION = re.compile(
    r"^((?:Parameters|Attributes)\n-+\n)((?:\S[^\n]*\n|[ ]+[^\n]*\n|\n(?=\S[^\n]*\n[ ]))*)", re.MULTILINE
)
ENTRY = re.compile(r"^(\w[\w, *]*?)(?: : ([^\n]*))?\n((?:[ ]+[^\n]*\n)*)", re.MULTILINE)


class Readable(Extension):
    """Doctests become an Examples section, roles become code."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Rewrite one docstring."""
        if obj.docstring is not None:
            obj.docstring.value = readable(obj.docstring.value)


def readable(text: str) -> str:
    """Return a docstring with roles as code, one entry per name, and a heading above doctests that have none.

    >>> readable("Add a :class:`~tacitly.Ledger`.")
    'Add a `Ledger`.'
    """
    text = ROLE.sub(r"`\1`", text)
    text = SECTION.sub(lambda section: section[1] + one_by_one(section[2]), text)
    if "\nExamples\n---" not in text and (first := re.search(r"^>>> ", text, re.MULTILINE)):
        text = f"{text[: first.start()]}Examples\n--------\n{text[first.start() :]}"
    return text


def one_by_one(entries: str) -> str:
    """Return the entries of a section with one name each: ``a, b`` (or ``a, b : about them``) becomes two entries."""
    made = []
    for entry in ENTRY.finditer(entries):
        about = f"    {entry[2].strip()}\n" if entry[2] else ""
        made += [f"{name.strip()}\n{about}{entry[3]}" for name in entry[1].split(",") if name.strip()]
    return "".join(made)
