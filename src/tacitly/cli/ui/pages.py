"""The pages behind ``tacitly ui``, as text. All text that does not come from this module is escaped."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from tacitly.audit.report import guessing_allowed
from tacitly.cli.ui.work import DELTA, EPSILONS, KINDS, Looked, Order, methods_of, shares
from tacitly.privacy.certificate import shown
from tacitly.reporting.page import STYLE, bullets, facts, paragraph, text

_MORE = """
form { margin: 1rem 0; } label { display: block; margin: .7rem 0 .2rem; font-weight: 600; }
select, input[type=text] { font: inherit; padding: .4rem .5rem; width: 100%; max-width: 26rem; color: inherit;
  background: var(--paper); border: 1px solid var(--dim); border-radius: .3rem; }
input[type=range] { width: 100%; height: 2rem; accent-color: var(--mark); }
button { display: block; font: inherit; font-weight: 600; padding: .55rem 1.2rem; margin-top: 1rem; border: 0;
  border-radius: .4rem; background: #1a5fb4; color: #fff; cursor: pointer; }
:focus-visible { outline: 3px solid var(--mark); outline-offset: 2px; }
fieldset { border: 1px solid var(--line); border-radius: .4rem; margin: .8rem 0; }
fieldset label { display: inline-block; font-weight: 400; margin: .15rem 1rem .15rem 0; }
progress { width: 100%; height: 1.4rem; accent-color: var(--mark); }
.choices { list-style: none; padding: 0; } .choices li { margin: .3rem 0; }
.buys { border-left: 4px solid var(--mark); padding: .2rem 0 .2rem .8rem; min-height: 6rem; }
.trail { padding-top: 1rem; font-size: .875rem; }
dl { display: grid; grid-template-columns: 9rem 1fr; gap: .3rem 1rem; }
dt { color: var(--dim); } dd { margin: 0; overflow-wrap: anywhere; }
"""

_SLIDER = """
const buys = JSON.parse(document.getElementById("buys").textContent), slider = document.getElementById("stop");
function show() {
  const now = buys[slider.value];
  for (const key of ["epsilon", "promise", "share"]) document.getElementById(key).textContent = now[key];
  document.getElementById("value").value = now.value;
  slider.setAttribute("aria-valuetext", now.epsilon);
}
slider.addEventListener("input", () => { show(); history.replaceState(null, "", "#" + slider.value); });
if (location.hash.slice(1) in buys) slider.value = location.hash.slice(1);  // chosen before the plan was ready
show();
"""
_WAIT = "setTimeout(() => location.reload(), 2500);"
_PROGRESS = """
const told = new EventSource(location.pathname + "/events");
told.onmessage = event => {
  const now = JSON.parse(event.data), bar = document.getElementById("bar");
  bar.max = now.planned || 1; bar.value = now.released;
  document.getElementById("latest").textContent = now.latest;
  document.getElementById("count").textContent = now.released + " of " + now.planned;
  document.getElementById("spent").textContent = "ε = " + now.spent.toFixed(3) + " of " + now.epsilon;
  if (now.done) { told.close(); location.reload(); }
};
"""


def start(tables: Sequence[str], models: Sequence[str]) -> str:
    """Return the first page: choose a table, or read a report."""
    listed = "".join(f'<li><a href="table?path={quote(name)}">{text(name)}</a></li>' for name in tables)
    found = "".join(f'<li><a href="report/public/{quote(name)}">{text(name)}</a></li>' for name in models)
    body = "<h2>Choose a table</h2>" + paragraph(
        "One row per observation, and a column with the user id: CSV, Parquet or Arrow. Nothing leaves this machine."
    )
    body += f'<ul class="choices">{listed}</ul>' if listed else paragraph("There is no table in this folder.", "dim")
    body += (
        '<form action="table"><label for="path">Another file</label>'
        '<input type="text" id="path" name="path" required placeholder="folder/file.csv">'
        "<button>Look at it</button></form>"
    )
    body += f'<h2>Models in this folder</h2><ul class="choices">{found}</ul>' if found else ""
    return _framed("Learn together without telling", body)


def columns(path: str, names: Sequence[str], dates: Sequence[str] = ()) -> str:
    """Return the page that asks how a table's columns are used; ``dates`` are left out by default."""
    options = '<option value="">choose …</option>' + "".join(
        f'<option value="{text(name)}">{text(name)}</option>' for name in names
    )
    boxes = "".join(
        f'<label><input type="checkbox" name="leave_out" value="{text(name)}"{" checked" * (name in dates)}> '
        f"{text(name)}</label>"
        for name in names
    )
    return _framed(
        path,
        f"""<h2>What are the columns for?</h2><form action="plan"><input type="hidden" name="path" value="{text(path)}">
<label for="user">Column with the user id</label><select id="user" name="user" required>{options}</select>
<label for="target">Column to predict</label><select id="target" name="target" required>{options}</select>
<label for="loss">Type of this column</label><select id="loss" name="loss">{_options(KINDS)}</select>
<label for="classes">If it is a class: all labels that may occur, with commas</label>
<input type="text" id="classes" name="classes" placeholder="no,yes">
<fieldset><legend>Leave out (ids, row numbers, dates)</legend>{boxes}</fieldset>
<p class="dim small">All other columns are used. Text, yes/no values and missing cells need no preparation.</p>
<details><summary>Another method</summary><label for="method">Method</label>
<select id="method" name="method">{_options(_methods())}</select>
{bullets(f"{name}: {about}" for name, about in methods_of("squared").items())}
<p class="dim small">The usual method takes any table; the others need numbers in all columns.</p></details>
<button>Compare values of ε</button></form>""",
        (("tables", "./"),),
    )


def _options(choices: Mapping[str, str]) -> str:
    return "".join(f'<option value="{text(name)}">{text(said)}</option>' for name, said in choices.items())


def _methods() -> dict[str, str]:
    every, several = methods_of("squared"), methods_of("logistic")
    said = {name: name if name in several else f"{name} (predicts numbers only)" for name in every}
    return {**said, Order.method: f"{Order.method} (usual)"}


def plan(order: Order, looked: Looked, found: Any, name: str, nonce: str) -> str:
    """Return the page with the plan and the slider."""
    rows = f"{looked.rows / looked.users:.1f} rows each on average"
    target = f"{order.target}, {KINDS[order.loss]}"
    target += f" ({', '.join(map(str, order.classes))})" if order.classes else ""
    said = f"{looked.users:,} users, {rows}; to predict: {target}; method: {order.method}."
    body = "<h2>What is in the table</h2>" + paragraph(said)
    body += bullets(looked.kinds)
    if any(kind.startswith("text") for kind in looked.kinds):
        body += paragraph(
            "A text column counts as several features: one per level, or per group of levels.", "dim small"
        )
    body += "<h2>How much privacy?</h2>" + _slider(order, looked, found, name, nonce)
    return _framed(order.path, body, (("tables", "./"), ("columns", f"table?path={quote(order.path)}")))


def _slider(order: Order, looked: Looked, found: Any, name: str, nonce: str) -> str:
    known = None if found is None or isinstance(found, str) else shares(found)
    stops = [_bought(epsilon, known, found) for epsilon in EPSILONS]
    usual = EPSILONS.index(1.0)
    hidden = "".join(f'<input type="hidden" name="{key}" value="{text(value)}">' for key, value in order.fields())
    data = json.dumps(stops).replace("<", "\\u003c")
    said = "" if known is None else paragraph(found.sentence())
    return (
        f'{said}<form action="fit" method="post">{hidden}<input type="hidden" id="value" name="epsilon" value="1.0">'
        '<label for="stop">ε: small is private, large is accurate</label>'
        f'<input type="range" id="stop" min="0" max="{len(EPSILONS) - 1}" value="{usual}">'
        f'<div class="buys" aria-live="polite"><p class="big" id="epsilon">{text(stops[usual]["epsilon"])}</p>'
        f'<p id="promise">{text(stops[usual]["promise"])}</p><p id="share">{text(stops[usual]["share"])}</p></div>'
        f'<label for="name">Name of the model (a new folder)</label>'
        f'<input type="text" id="name" name="name" value="{text(name)}" '
        "required><button>Fit the model</button></form>"
        f'<script type="application/json" id="buys">{data}</script>'
        f'<script nonce="{nonce}">{_SLIDER}{_WAIT if found is None else ""}</script>'
    )


def _bought(epsilon: float, known: Any, found: Any) -> dict[str, Any]:
    """Return the texts for one position of the slider."""
    guess = guessing_allowed(epsilon, DELTA)
    promise = (
        f"Nobody can guess correctly whether a person's rows were used in more than {100 * guess:.0f} % of cases (a "
        f"coin flip: 50 %), and no conclusion becomes more than {math.exp(epsilon):.3g} times as likely."
    )
    if known is None:
        share = found if isinstance(found, str) else "The plan is being simulated …"
    else:
        worth = max(0.0, known[epsilon])
        share = (
            f"Expect about {100 * worth:.0f} % of what sharing could gain."
            if worth >= 0.02
            else "Expect no gain: the noise hides it."
        )
    promise, share = (words.replace(" %", "\N{NO-BREAK SPACE}%") for words in (promise, share))
    return {"value": str(epsilon), "epsilon": f"ε = {epsilon:g}", "promise": promise, "share": share}


def run(state: dict[str, Any], nonce: str) -> str:
    """Return the page of a fit: its progress, or its result."""
    name = str(state["name"])
    trail = (("tables", "../"),)
    if state["error"]:
        return _framed(
            name, paragraph(state["error"], "warn") + paragraph("Nothing is spent twice: the same fit resumes."), trail
        )
    if state["done"]:
        links = (
            f'<li><a href="../report/private/{quote(name)}">Report, private edition</a>: which users it helped; '
            "do not publish it</li>"
            f'<li><a href="../report/public/{quote(name)}">Report, public edition</a></li>'
        )
        rows = [
            ("model", name),
            ("ε", shown(state["spent"])),
            ("account", state["account"]),
            ("time", f"{state['seconds']} s"),
        ]
        return _framed(name, f"<h2>Done</h2><ul>{links}</ul>{facts(rows, 'This fit')}", trail)
    body = (
        '<h2 id="what">Fitting</h2><progress id="bar" value="{released}" max="{most}" aria-labelledby="what">'
        "</progress>"
        '<dl><dt>step</dt><dd id="latest">{latest}</dd><dt>releases</dt><dd id="count">{released} of {planned}</dd>'
        '<dt>spent</dt><dd id="spent">ε = {spent} of {epsilon}</dd></dl>'
    ).format(**{key: text(value) for key, value in state.items()}, most=text(state["planned"] or 1))
    body += f'<script nonce="{nonce}">{_PROGRESS}</script>'
    return _framed(name, body, trail, '<noscript><meta http-equiv="refresh" content="2"></noscript>')


def failed(message: str) -> str:
    """Return the page that shows a user error."""
    return _framed("This did not work", paragraph(_in_page_words(message), "warn") + "<p>Go back and change it.</p>")


def _in_page_words(message: str) -> str:
    """Replace a command's options in a message by the labels of the forms.

    >>> _in_page_words("5 rows not numbers. If these are classes: --loss logistic --classes no,yes (all labels).")
    "5 rows not numbers. If these are classes: choose 'one of several classes' and list all labels that may occur."
    """
    classes = f"If these are classes: choose {KINDS['logistic']!r} and list all labels that may occur."
    return re.sub(r" ?\((?:--)[^)]*\)", "", re.sub(r"If these are classes: .*", classes, message))


def _framed(title: str, body: str, trail: Sequence[tuple[str, str]] = (), head: str = "") -> str:
    links = "".join(f'<li><a href="{text(address)}">{text(name)}</a></li>' for name, address in trail)
    nav = f'<nav class="trail" aria-label="Back"><ul>{links}</ul></nav>' if links else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"{head}<title>{text(title)}: tacitly</title><style>{STYLE}{_MORE}</style></head>\n"
        f"<body>{nav}<header><h1>{text(title)}</h1></header><main>{body}</main></body></html>\n"
    )
