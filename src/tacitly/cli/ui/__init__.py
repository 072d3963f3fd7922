"""A local page for people who do not use a terminal: choose a table and an ε, fit, read the report.

It uses Starlette on Uvicorn, which provide all that is needed: routes, streams and a check of the ``Host`` header.
Together they are 7 packages (2.1 MB installed, 1.5 MB of them not needed otherwise). Shiny is 31 packages, Panel 31
(with Bokeh) and Streamlit 34 (with pandas and Altair); all three load megabytes of JavaScript into the page and keep a
session that is lost on reload. The pages here are forms, one stream of events while a model is fitted, and 20 lines of
script for the slider. HTMX would add third-party code to this repository or requests to another site, so it is not
used.

Access is limited to this machine (127.0.0.1), to requests with the token that is part of every address, and to the host
names 127.0.0.1 and localhost (another name means DNS rebinding). A fit is the same as with ``tacitly fit``: the same
account, the same certificate, the same folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tacitly.cli.console import say


def ui(
    folder: Annotated[Path, typer.Argument(help="Folder with tables, where models are written.")] = Path("."),
    port: Annotated[int, typer.Option(help="Port on this machine; default: a free one.")] = 0,
    open_: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in the browser.")] = True,
) -> None:
    """Fit models and read reports on a local page, reachable from this machine only (needs the extra 'ui')."""
    from tacitly.cli.ui.server import serve

    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder. Expected the one that holds your tables.")
    serve(folder.resolve(), port, on_start=lambda address: _tell(address, open_))


def _tell(address: str, open_: bool) -> None:
    say(f"tacitly is at {address}\n(from this machine only, with exactly this address; Ctrl-C stops it)")
    if open_:
        import webbrowser

        webbrowser.open(_redirect(address).as_uri())


def _redirect(address: str) -> Path:
    """Write a page, readable by this account only, that redirects to the address: program arguments are public."""
    import atexit
    import os
    import tempfile

    handle, name = tempfile.mkstemp(prefix="tacitly-", suffix=".html")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(f'<!doctype html><meta http-equiv="refresh" content="0; url={address}"><title>tacitly</title>')
    path = Path(name)
    atexit.register(path.unlink, missing_ok=True)
    return path
