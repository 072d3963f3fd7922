"""Remove a user's rows and head."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tacitly.cli.console import say


def forget(
    user: Annotated[str, typer.Argument(help="The user's id.", show_default=False)],
    folders: Annotated[list[Path], typer.Argument(help="Model folders, grouped rows, sites.", show_default=False)],
) -> None:
    """Remove a user's rows and head from folders, and state what the released models still guarantee."""
    from tacitly.deployment.forget import forget as remove

    if not any(folder.exists() for folder in folders) and Path(user).is_dir():
        raise ValueError(f"the user's id must come first, then folders: tacitly forget {folders[0]!s:.40} {user}")
    lines = remove(user, *folders)
    for line in lines:
        say(line)
    if not any(": removed " in line for line in lines):
        say("Nothing was removed: no user in these folders has this id. Ids are compared as text: 007 and 7 differ.")
        return
    say(
        "Remove the rows from your own tables and backups too. The account keeps what was spent, and 8 bytes from "
        "which its owner could recognise the id."
    )
