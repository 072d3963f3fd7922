"""The certificate as one readable page: a self-contained HTML label.

Its headings follow the layers by which NIST SP 800-226 evaluates a claim of differential privacy, from the number at
the top to its foundations: ε and the unit; the definition and the mechanisms; the trust model, the implementation and
what is outside the guarantee.
"""

from __future__ import annotations

from html import escape

from tacitly.privacy.certificate import Certificate, shown

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1b; --dim: #555; --line: #bbb; --paper: #fff; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8e8; --dim: #aaa; --line: #555; --paper: #161616; } }
body { font: 15px/1.45 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem; }
body { color: var(--ink); background: var(--paper); overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; margin: 0; }
h2 { font-size: 1rem; margin: 1.1rem 0 .3rem; border-bottom: 1px solid var(--line); }
.claim { border: 2px solid; border-radius: .5rem; padding: .8rem 1rem; margin: 1rem 0; }
.epsilon { font-size: 2rem; font-weight: 600; } table { border-collapse: collapse; width: 100%; }
th, td { padding: .15rem .5rem .15rem 0; vertical-align: top; text-align: left; }
th { color: var(--dim); font-weight: normal; white-space: nowrap; width: 7.5rem; }
ul { margin: .2rem 0; padding-left: 1.2rem; } .mono { font: 12px monospace; word-break: break-all; }
@media print { :root { --ink: #000; --dim: #333; --paper: #fff; } body { margin: 0; font-size: 12px; } }
"""


def label(certificate: Certificate, name: str) -> str:
    """Return the page."""
    return "\n".join(
        [
            "<!doctype html>",
            f'<html lang="en"><meta charset="utf-8"><title>{escape(name)}: privacy</title>',
            '<meta name="viewport" content="width=device-width">',
            f"<style>{_STYLE}</style>",
            "<main>",
            f"<h1>{escape(name)}</h1>",
            f"<p>{escape(certificate.purpose or certificate.algorithm)}</p>",
            _claim(certificate),
            "<h2>Whose data are protected</h2>",
            _table(
                ("unit", f"one {certificate.unit}; {certificate.n_users} in all"),
                ("neighbours", f"{certificate.adjacency} (ε = {shown(certificate.epsilon_replace_one)} if replaced)"),
                ("known to all", "; ".join(certificate.public)),
            ),
            "<h2>How it is achieved</h2>",
            _table(
                ("mechanisms", f"{_count(certificate)} with {_noises(certificate)} noise"),
                ("other numbers", _numbers(certificate)),
                ("account", certificate.totals()),
            ),
            "<h2>Who has to be trusted</h2>",
            f"<p>{escape(certificate.trust)}</p>",
            "<h2>What is not covered</h2>",
            _list(certificate.not_covered),
            *(["<h2>Notes</h2>", _list(certificate.notes)] if certificate.notes else []),
            "<h2>Who says so, and how to check</h2>",
            _table(
                ("curator", certificate.curator or "not stated"),
                ("date", certificate.date),
                ("region", certificate.region or "not stated"),
                ("code", f"tacitly {certificate.code['version']}"),
                ("its SHA-256", certificate.code["sha256"] or "unknown"),
                ("certificate", certificate.digest),
                ("signed by", certificate.signature["key"] if certificate.signature else "not signed"),
                ("check", "tacitly verify MODEL --key KEY"),
            ),
            "</main></html>",
            "",
        ]
    )


def _claim(certificate: Certificate) -> str:
    if not certificate.certified:
        return f'<div class="claim">No privacy is claimed: {escape("; ".join(certificate.reasons))}</div>'
    rarely = ", except with probability about δ" if certificate.delta > 0 else ""
    return (
        f'<div class="claim"><span class="epsilon">ε = {shown(certificate.epsilon)}</span> at δ = {certificate.delta:g}'
        f"<br>Whatever is concluded from this model would be concluded almost as often without any one "
        f"{certificate.unit}'s data: no probability changes by more than a factor e<sup>ε</sup>{rarely}.</div>"
    )


def _count(certificate: Certificate) -> str:
    number = len(certificate.releases)
    return f"{number} release{'' if number == 1 else 's'}"


def _noises(certificate: Certificate) -> str:
    return " and ".join(sorted({release.noise for release in certificate.releases})) or "no"


def _numbers(certificate: Certificate) -> str:
    pairs = (("μ", certificate.mu_zero_out), ("ρ", certificate.rho_zero_out))
    stated = [f"{symbol} = {value:.4g}" for symbol, value in pairs if value is not None]
    return (", ".join(stated) + " (zero-out); " if stated else "") + "ε at any δ follows from the releases"


def _table(*rows: tuple[str, str]) -> str:
    cells = "".join(
        f"<tr><th scope=row>{escape(key)}<td{' class=mono' if _is_hash(value) else ''}>{escape(value)}"
        for key, value in rows
    )
    return f"<table>{cells}</table>"


def _is_hash(text: str) -> bool:
    return len(text) == 64 and " " not in text


def _list(items: tuple[str, ...]) -> str:
    return "<ul>" + "".join(f"<li>{escape(item)}" for item in items) + "</ul>"
