"""Make our docstrings readable as Markdown, before mkdocstrings renders them (an extension of Griffe)."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension

ROLE = re.compile(r":(?:class|func|meth|mod|data|attr):`~?(?:[^`<]*<)?(?:[\w.]*\.)?(\w+)>?`")


class Readable(Extension):
    """Doctests become an Examples section, roles become code."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Rewrite one docstring."""
        if obj.docstring is not None:
            obj.docstring.value = readable(obj.docstring.value)


def readable(text: str) -> str:
    """Return a docstring with roles as code, and a heading above doctests that have none.

    >>> readable("Add a :class:`~tacitly.Ledger`.")
    'Add a `Ledger`.'
    """
    text = ROLE.sub(r"`\1`", text)
    if "\nExamples\n---" not in text and (first := re.search(r"^>>> ", text, re.MULTILINE)):
        text = f"{text[: first.start()]}Examples\n--------\n{text[first.start() :]}"
    return text
