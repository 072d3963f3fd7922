"""The report as a document: its frame, its style, and the elements that all sections use.

An element is HTML that is safe to put into a page: every text from outside (names of columns, ids, a curator's words)
is escaped by :func:`text`. The page makes no requests: a policy in its head forbids scripts and all addresses.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'none'; base-uri 'none'"

STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1b1b1b; --dim: #555; --line: #ccc; --soft: #f3f4f6;
  --mark: #1a5fb4; --band: #b9d2ee; --warn: #a51d2d; --good: #1e6b34; }
@media (prefers-color-scheme: dark) { :root { --paper: #15171a; --ink: #e9e9e9; --dim: #b0b4ba; --line: #454a50;
  --soft: #22262b; --mark: #7ab4f5; --band: #2f4d70; --warn: #ff8f8f; --good: #7fd69a; } }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0; background: var(--paper); color: var(--ink);
  overflow-wrap: break-word; }
main, header, footer, nav, aside { max-width: 52rem; margin: 0 auto; padding: 0 1rem; }
header { padding-top: 1.5rem; } footer { padding: 1rem 1rem 3rem; color: var(--dim); font-size: .875rem; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; margin: 2.25rem 0 .5rem; padding-bottom: .2rem; border-bottom: 2px solid var(--line); }
h3 { font-size: 1rem; margin: 1.4rem 0 .3rem; } p { margin: .4rem 0 .7rem; }
a { color: var(--mark); } nav ul { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; list-style: none; padding: 0; }
.dim { color: var(--dim); } .small { font-size: .875rem; }
.claim { border: 2px solid; border-radius: .6rem; padding: .8rem 1rem; margin: 1rem 0; }
.big { font-size: 2rem; font-weight: 650; line-height: 1.2; }
.private { background: #a51d2d; color: #fff; padding: .4rem 1rem; text-align: center; font-weight: 650;
  position: sticky; top: 0; z-index: 1; max-width: none; }
.stamp { display: none; }
.warn { color: var(--warn); font-weight: 600; } .good { color: var(--good); font-weight: 600; }
table { border-collapse: collapse; width: 100%; font-size: .9375rem; margin: 1rem 0 .4rem; }
caption { text-align: left; color: var(--dim); padding-bottom: .3rem; font-size: .875rem; }
th, td { text-align: left; padding: .3rem .8rem .3rem 0; vertical-align: top; border-bottom: 1px solid var(--line); }
th { font-weight: 600; overflow-wrap: anywhere; } thead th { color: var(--dim); font-size: .8125rem; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; padding-right: 0;
  padding-left: .6rem; }
thead th.n { white-space: normal; } th.bar { width: 50%; } th.bar:nth-last-child(2) { width: 75%; }
tbody th.bar { padding-bottom: .15rem; }
.bar svg { display: block; width: 100%; height: 14px; overflow: visible; margin-top: .1rem; }
.axis { display: flex; justify-content: space-between; font-weight: 400; font-variant-numeric: tabular-nums;
  font-size: .8125rem; color: var(--dim); }
figure { margin: .6rem 0; } figcaption { color: var(--dim); font-size: .875rem; }
.chart svg { display: block; width: 100%; height: 150px; overflow: visible; }
svg .mark { stroke: var(--mark); fill: var(--mark); } svg .band { fill: var(--band); } svg .zero { stroke: var(--dim); }
svg .floor { stroke: var(--warn); stroke-dasharray: 4 3; stroke-width: 2; } svg .off { fill: var(--dim); }
details { margin: .4rem 0; } summary { cursor: pointer; color: var(--mark); }
code, pre { font: .8125rem/1.5 ui-monospace, monospace; background: var(--soft); border-radius: .3rem; }
code { padding: .1rem .3rem; overflow-wrap: anywhere; } pre { padding: .7rem .9rem; white-space: pre-wrap; }
th.key { width: 30%; min-width: 6rem; overflow-wrap: break-word; } th.key + td { overflow-wrap: anywhere; }
.hash { overflow-wrap: anywhere; font: .75rem ui-monospace, monospace; }
@media screen and (max-width: 40rem) {
  .stack thead th.n { display: none; } .stack thead th { border-bottom: 0; }
  .stack tr { display: flex; flex-wrap: wrap; gap: 0 1.2rem; border-bottom: 1px solid var(--line); padding: .3rem 0; }
  .stack caption, .stack thead, .stack tbody { display: block; } .stack { display: block; }
  .stack th, .stack td { border: 0; padding: .1rem 0; } .stack th { flex: 1 0 100%; width: 100%; }
  .stack td.n { white-space: normal; padding-left: 0; }
  .stack td.n::before { content: attr(data-label) " "; color: var(--dim); font-size: .8125rem; }
}
@page { margin: 18mm 15mm; }
@media print {
  :root { --paper: #fff; --ink: #000; --dim: #444; --line: #bbb; --soft: #f3f4f6; --mark: #1a5fb4; --band: #b9d2ee;
    --warn: #a51d2d; --good: #1e6b34; }
  body { font-size: 11pt; } main, header, footer { max-width: none; padding-left: 0; padding-right: 0; }
  nav { display: none; } h2, h3 { break-after: avoid; } tr, figure, .claim { break-inside: avoid; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; } .private { position: static; }
  .stamp { display: block; position: fixed; top: 38%; left: 0; right: 0; text-align: center; font-size: 5rem;
    font-weight: 700; color: var(--warn); opacity: .13; transform: rotate(-30deg); }
}
"""
_MARKED = """
@page { @top-center { content: "PRIVATE EDITION: do not publish"; color: #a51d2d; font: bold 10pt sans-serif; } }
"""


@dataclass(frozen=True)
class Section:
    """A section of the page with its own heading; ``body`` is escaped HTML."""

    key: str
    title: str
    body: str


def text(words: object) -> str:
    """Return a text escaped for the page, so that nothing in it is treated as markup.

    >>> text('<b onclick="x">')
    '&lt;b onclick=&quot;x&quot;&gt;'
    """
    return escape(str(words), quote=True)


def number(value: float) -> str:
    """Return a number with four digits and a real minus sign.

    >>> number(-0.026612), number(69.1123), number(1234567.0)
    ('−0.02661', '69.11', '1.235e+06')
    """
    return ("−" if value < 0 else "") + f"{abs(value):.4g}"


def paragraph(words: object, kind: str = "") -> str:
    """Return a paragraph of plain text; a number and its per cent sign stay on one line."""
    attribute = f' class="{kind}"' if kind else ""
    return f"<p{attribute}>{text(words).replace(' %', '&nbsp;%')}</p>"


def bullets(items: Iterable[object]) -> str:
    """Return a list of plain texts; empty if there are no items."""
    lines = "".join(f"<li>{text(item)}</li>" for item in items)
    return f"<ul>{lines}</ul>" if lines else ""


def facts(rows: Iterable[tuple[str, object]], caption: str) -> str:
    """Return a table of names and values."""
    body = "".join(
        f'<tr><th scope="row" class="key">{text(key)}</th><td{_kind(str(value))}>{text(value)}</td></tr>'
        for key, value in rows
    )
    return f"<table><caption>{text(caption)}</caption><tbody>{body}</tbody></table>"


def table(heads: Sequence[str], rows: Iterable[Sequence[object]], caption: str) -> str:
    """Return a table whose first column names its rows; the other columns contain numbers or short texts."""
    top = "".join(f'<th scope="col" role="columnheader"{_right(at)}>{text(head)}</th>' for at, head in enumerate(heads))
    body = "".join(
        row(f'<th scope="row" role="rowheader">{text(first)}</th>', zip(heads[1:], rest, strict=True))
        for first, *rest in rows
    )
    return framed(top, body, caption, stacked=len(heads) > 2)


def row(first: str, cells: Iterable[tuple[str, object]]) -> str:
    """Return a row of a table: a cell of escaped HTML, then labelled numbers."""
    rest = "".join(f'<td class="n" role="cell" data-label="{text(label)}">{text(cell)}</td>' for label, cell in cells)
    return f'<tr role="row">{first}{rest}</tr>'


def framed(top: str, body: str, caption: str, *, stacked: bool) -> str:
    """Return a table of rows; with ``stacked``, a phone shows the cells of a row below its name.

    The roles tell screen readers that it is a table, even if the style arranges its rows differently.
    """
    kind = ' class="stack"' if stacked else ""
    return (
        f'<table{kind} role="table"><caption>{text(caption)}</caption><thead role="rowgroup"><tr role="row">{top}</tr>'
        f'</thead><tbody role="rowgroup">{body}</tbody></table>'
    )


def folded(title: str, body: str) -> str:
    """Return content that is collapsed until the reader opens it."""
    return f"<details><summary>{text(title)}</summary>{body}</details>"


def document(title: str, lead: str, sections: Sequence[Section], *, private: bool, foot: str) -> str:
    """Return the whole page; ``lead`` is escaped HTML below the title."""
    edition = "private edition" if private else "public edition"
    banner = (
        '<aside class="private">Private edition: computed from people\'s rows. Do not publish.</aside>'
        '<div class="stamp" aria-hidden="true">PRIVATE</div>'
        if private
        else ""
    )
    links = "".join(f'<li><a href="#{section.key}">{text(section.title)}</a></li>' for section in sections)
    parts = "".join(
        f'<section aria-labelledby="{section.key}"><h2 id="{section.key}">{text(section.title)}</h2>{section.body}'
        "</section>\n"
        for section in sections
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{text(_POLICY)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<title>{text(title)}: report ({edition})</title><style>{STYLE}{_MARKED if private else ''}</style></head>\n"
        f'<body>{banner}<header><h1>{text(title)}</h1><p class="dim">{edition}</p></header>\n'
        f'<nav aria-label="Sections"><ul>{links}</ul></nav>\n<main>{lead}{parts}</main>\n'
        f"<footer>{foot}</footer></body></html>\n"
    )


def _right(at: int) -> str:
    return ' class="n"' if at else ""


def _kind(value: str) -> str:
    return ' class="hash"' if len(value) == 64 and value.isalnum() else ""
