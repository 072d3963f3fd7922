"""Compare a certificate with its ledger: its runs, their releases, the recorded statement, and all totals.

Part of :mod:`tacitly.privacy.verification`; every total is derived again by :mod:`tacitly.privacy.second_opinion`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tacitly.privacy.certificate_text import NUMBERS, writable
from tacitly.privacy.second_opinion import epsilon_of
from tacitly.privacy.verdict import TOLERANCE, Check, close

if TYPE_CHECKING:
    from tacitly.privacy.ledger import Ledger, RunSummary

_PLACE = ("entries", "head")
_MODEL = "billboard.safetensors"
_DELTA = 1e-6  # of totals of noisy sums, where the account or the certificate is at δ = 0


def ledger_agrees(data: Mapping[str, Any], ledger: Ledger) -> Iterable[Check]:
    """Compare a certificate with the runs it comes from: their state, all their releases, and the recorded statement.

    A model that was refreshed, or fitted in parts, has one run per call; its certificate is recorded in the last. Each
    of these runs named those before it when it was opened, so none of them can be left out, replaced or moved.
    """
    by_name = {run.name: run for run in ledger.runs()}
    names = list(dict.fromkeys(release["run"] for release in data["releases"]))
    runs = [by_name[name] for name in names if name in by_name]
    problems = [f"run {name!r} is not in the ledger" for name in names if name not in by_name]
    problems += [f"run {run.name!r} is {run.state}, not finished" for run in runs if run.state != "finished"]
    problems += [
        f"run {run.name!r} continues {before or 'none'}, the certificate has {names[:place] or 'none'} before it"
        for place, run in enumerate(runs)
        if (before := run.config.get("after", [])) != names[:place]
    ]
    if any(run.certified != (data["mode"] == "certified") for run in runs):
        problems.append(f"mode {data['mode']!r}, but the ledger has a run with certified={data['mode'] != 'certified'}")
    words = ", ".join(repr(name) for name in names)
    yield Check("run", bool(runs) and not problems, "; ".join(problems) or f"{words}, finished")
    rows = [row.to_dict() for run in runs for row in ledger.releases(run.name)]
    agree = bool(rows) and writable(rows) == writable(data["releases"])
    yield Check("ledger", agree, f"{len(rows)} rows in the ledger, {len(data['releases'])} releases claimed")
    yield _announced(data, [run.config for run in runs])
    yield from _recorded(data, runs[-1].statements if runs else {}, ledger)


def _announced(data: Mapping[str, Any], configs: list[Mapping[str, Any]]) -> Check:
    """Compare with what runs announced before they spent anything; not every program announces everything."""
    stated = {"algorithm": data["algorithm"], **{name: data["budget"][name] for name in ("adjacency", "delta")}}
    wrong = {name for config in configs for name, value in stated.items() if config.get(name, value) != value}
    units = [config["n_units"] for config in configs if "n_units" in config]
    # The same units may be in several calls, or others in each. (Other programs may write anything there.)
    if not all(type(number) is int for number in units) or (units and not max(units) <= data["n_users"] <= sum(units)):
        wrong.add("n_users")
    return Check("ledger_config", not wrong, f"differ: {', '.join(sorted(wrong))}" if wrong else "as announced")


def _recorded(data: Mapping[str, Any], statements: Mapping[int, Mapping[str, Any]], ledger: Ledger) -> Iterable[Check]:
    """Compare with the entry in which the ledger recorded the certificate: its hash, its statement, its totals."""
    account = data["account"]
    if account is None:
        yield Check("ledger_entry", False, "the certificate names no account: it was not saved with a ledger")
        return
    entry = account["entries"]
    known = account["id"] == ledger.id and ledger.hash_at(entry) == account["head"] and entry in statements
    yield Check(
        "ledger_entry", known, f"entry {entry} of account {account['id']}" + ("" if known else ": not in this ledger")
    )
    if not known:
        return
    claimed, recorded = _statement(data), statements[entry]
    differ = sorted(name for name in {*claimed, *recorded} if claimed.get(name) != recorded.get(name))
    yield Check(
        "ledger_words", not differ, f"differ from what was recorded: {', '.join(differ)}" if differ else "as recorded"
    )
    yield _only_statement(data, ledger.runs())
    yield from _totals_follow(data, ledger)


def _only_statement(data: Mapping[str, Any], runs: Iterable[RunSummary]) -> Check:
    """Check that nothing on the account states the same model with other runs: noise makes any two models differ."""
    last, model = data["releases"][-1]["run"], data["files"].get(_MODEL)
    compared = model is not None and data["mode"] == "certified"
    others = [run.name for run in runs if run.name != last and _states(run, model)] if compared else []
    return Check("ledger_files", not others, f"also stated by {others}" if others else "stated by no other run")


def _states(run: RunSummary, model: str) -> bool:
    files = [statement.get("files") for statement in run.statements.values()]
    return any(isinstance(named, Mapping) and named.get(_MODEL) == model for named in files)


def _totals_follow(data: Mapping[str, Any], ledger: Ledger) -> Iterable[Check]:
    """Compare the certificate's totals of its account with the ledger at the entry that records the certificate."""
    account = data["account"]
    sound, then = all(run.certified for run in ledger.runs()), ledger.standing(account["entries"])
    ceiling = None if then.ceiling is None else asdict(then.ceiling)
    rows = ledger.releases_up_to(account["entries"])
    found = {
        "runs": then.runs,
        "renews": then.renews,
        "period": then.period,
        "ceiling": ceiling,
        **_terms(ceiling or data["budget"], [row.to_dict() for row in rows]),
    }
    wrong = sorted(name for name, value in found.items() if account[name] != value)
    yield Check("account", not wrong, f"differ from the ledger: {', '.join(wrong)}" if wrong else "as in the ledger")
    everything = _together(rows, account, sound)
    yield close("account_total", account["epsilon"], everything, TOLERANCE)
    lately = ledger.releases_up_to(account["entries"], since=then.since)
    in_period = everything if lately == rows else _together(lately, account, sound)  # sampled ones take seconds
    yield close("account_period", account["period_epsilon"], in_period, TOLERANCE)
    by_now = ledger.releases()
    total = everything if by_now == rows else _together(by_now, account, sound)
    yield Check(
        "ledger_total",
        True,
        f"{account['epsilon']:.6g} when it was certified, {total:.6g} by now ({account['adjacency']}, "
        f"delta = {account['delta']:g})",
    )


def _terms(standing: Mapping[str, Any], releases: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the adjacency and δ at which totals are stated: the ceiling's, or the budget's of an account without."""
    noisy = any(release["event"]["mechanism"] == "gaussian" for release in releases)
    delta = standing["delta"] or (_DELTA if noisy else 0.0)
    return {"adjacency": str(standing["adjacency"]), "delta": delta}


def _together(releases: Iterable[Any], account: Mapping[str, Any], sound: bool) -> float:
    rows = [row.to_dict() for row in releases]
    return epsilon_of(rows, account["adjacency"], account["delta"]) if sound else math.inf


def _statement(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the statement of a certificate, as the ledger records it."""
    derived = {"format", "digest", "signature", "releases", "certified"} | {
        name for name in data if name.startswith(NUMBERS)
    }
    stated = {name: value for name, value in data.items() if name not in derived}
    if stated["account"] is not None:
        stated["account"] = {name: value for name, value in stated["account"].items() if name not in _PLACE}
    result: Mapping[str, Any] = writable(stated)
    return result
