"""A page that shows a coordinator's status, for this machine only. Nothing on it is private."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tacitly.deployment.serve import current_status

_LOOKING = 3.0  # seconds: an open page sends a request every second

_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>tacitly serve</title>
<meta name="viewport" content="width=device-width">
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 44rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
h1 { font-size: 1.3rem } dl { display: grid; grid-template-columns: 11rem 1fr; gap: .3rem 1rem } dt { color: #666 }
dd { margin: 0 } .bar, .bar div { height: .7rem; border-radius: .35rem } .bar { background: #eee }
.bar div { background: #2a6; width: 0 } .error { color: #b00 }
</style>
<h1>tacitly coordinator: <span id="state">…</span></h1>
<div class="bar"><div id="done"></div></div>
<dl id="facts"></dl>
<script>
const label = {sites: "sites", heard: "last heard", release: "latest release", releases: "releases", left: "time left",
  rounds: "rounds", nodes: "nodes",
  users: "users on the roster", spent: "ε spent", not_counted: "not counted", verdicts: "answers, by verdict",
  silent: "silent in the last round", last_error: "last error",
  updated: "updated"};
async function show() {
  const status = await (await fetch("status.json", {cache: "no-store"})).json();
  document.getElementById("state").textContent = status.state;
  const share = status.planned ? (status.releases || 0) / status.planned : 0;
  document.getElementById("done").style.width = 100 * share + "%";
  const shown = {...status, silent: (status.last_round || {}).silent};
  if (status.heard && status.state !== "finished")
    shown.heard = Object.entries(status.heard).map(([site, ago]) => site + " " + Math.round(ago) + " s ago");
  if (status.planned) shown.releases = (status.releases || 0) + " of " + status.planned;
  if (status.spent != null) shown.spent = status.spent.toFixed(3) + (status.epsilon ? " of " + status.epsilon : "");
  const began = status.began, more = began ? (status.releases || 0) - began.releases : 0;
  if (more > 0 && status.planned && status.state === "running") {
    const left = (status.updated - began.at) / more * (status.planned - status.releases);
    shown.left = left > 90 ? "about " + Math.round(left / 60) + " minutes" : "about " + Math.round(left) + " s";
  }
  if (status.updated) shown.updated = new Date(1000 * status.updated).toLocaleTimeString();
  const facts = document.getElementById("facts");
  facts.replaceChildren(...Object.entries(label).filter(([key]) => shown[key] != null).flatMap(([key, name]) => {
    const dt = document.createElement("dt"), dd = document.createElement("dd"), value = shown[key];
    dt.textContent = name; dd.id = key;
    dd.textContent = Array.isArray(value) ? value.join(", ") || "none" : typeof value === "object"
      ? Object.entries(value).map(([k, v]) => k + " " + v).join(", ") : value;
    if (key === "last_error") dd.className = "error";
    return [dt, dd];
  }));
}
const timer = setInterval(look, 1000);
async function look() {
  try {
    await show();
  } catch (error) {  // the coordinator's program has ended; what was shown last stays
    clearInterval(timer);
    document.title = "tacitly serve (ended)";
  }
}
look();
</script></html>
"""


@contextmanager
def page(folder: Path, port: int) -> Iterator[str]:
    """Serve the page on this machine's loopback while the block runs; yield its address.

    The page stays available for a few seconds after the end, so that an open page can show it.

    >>> import tempfile, urllib.request
    >>> with tempfile.TemporaryDirectory() as folder, page(Path(folder), 0) as address:
    ...     b"tacitly coordinator" in urllib.request.urlopen(address).read()
    True
    """
    asked: deque[float] = deque(maxlen=1)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            # Another name in Host means DNS rebinding: a page of another site uses a name that now points here.
            if self.headers.get("Host") not in (f"127.0.0.1:{server.server_port}", f"localhost:{server.server_port}"):
                self.send_error(403)
            elif self.path == "/":
                self._send(_PAGE.encode(), "text/html; charset=utf-8")
            elif self.path == "/status.json":
                asked.append(time.monotonic())
                self._send(json.dumps(current_status(folder)).encode(), "application/json")
            else:
                self.send_error(404)

        def _send(self, body: bytes, kind: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Content-Security-Policy", "default-src 'self' 'unsafe-inline'")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        ended = time.monotonic()
        while asked and asked[0] <= ended < asked[0] + _LOOKING and time.monotonic() < ended + _LOOKING:
            time.sleep(0.05)  # a page was open a moment ago and has not shown the end yet
        server.shutdown()
        server.server_close()
