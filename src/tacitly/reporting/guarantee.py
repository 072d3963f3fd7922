"""The privacy guarantee in words and numbers: ε, the account, the releases, and what is not protected."""

from __future__ import annotations

import math
import re
from itertools import groupby

from tacitly.audit.report import guessing_allowed
from tacitly.privacy.accounting import compose
from tacitly.privacy.certificate import Certificate, shown
from tacitly.privacy.guarantee import Adjacency, GaussianEvent
from tacitly.privacy.release import Release
from tacitly.privacy.verification import verify
from tacitly.reporting.charts import Scale, bar, drawn, steps
from tacitly.reporting.page import bullets, facts, folded, number, paragraph, table, text
from tacitly.reporting.public_part import PublicPart

_MOST_SHOWN = 12
_MOST_RELEASES = 60  # if there are more, releases of one kind share a row

_MEANING = {
    Adjacency.ZERO_OUT: "as if one {unit} had contributed nothing",
    Adjacency.REPLACE_ONE: "as if one {unit}'s data were somebody else's",
}


def claim(certificate: Certificate) -> str:
    """Return the guarantee in a frame, for the top of the page."""
    if not certificate.certified:
        why = "; ".join(certificate.reasons) or "the releases have no finite ε"
        return f'<div class="claim warn">No privacy is claimed: {text(why)}</div>'
    factor = number(math.exp(certificate.epsilon)) if certificate.epsilon < 20 else "very many"
    return (
        f'<div class="claim"><span class="big">ε = {shown(certificate.epsilon)}</span> at δ = {certificate.delta:g}, '
        f"{text(certificate.adjacency)}, for every {text(certificate.unit)}<br>Whatever is concluded from this model "
        f"would be concluded almost as often without any one {text(certificate.unit)}'s data: no probability changes "
        f"by more than a factor e<sup>ε</sup> = {factor}, except with probability about δ.</div>"
    )


def epsilon(certificate: Certificate) -> str:
    """Return ε for both adjacencies and for the whole account, in words and numbers."""
    if not certificate.certified:
        body = paragraph("This model is not certified: it promises nothing.", "warn") + bullets(certificate.reasons)
        if certificate.nominal_epsilon is not None:
            body += paragraph(
                f"Its paper states ε = {shown(certificate.nominal_epsilon)}, which is not a claim of this model."
            )
        return body
    both = (
        (Adjacency.ZERO_OUT, certificate.epsilon_zero_out, certificate.mu_zero_out, certificate.rho_zero_out),
        (
            Adjacency.REPLACE_ONE,
            certificate.epsilon_replace_one,
            certificate.mu_replace_one,
            certificate.rho_replace_one,
        ),
    )
    rows = [
        (
            f"{adjacency}: {_MEANING[adjacency].format(unit=certificate.unit)}",
            shown(value),
            _factor(value),
            f"{100 * guessing_allowed(value, certificate.delta, gaussian=mu is not None):.1f} %",
            "–" if mu is None else number(mu),
            "–" if rho is None else number(rho),
        )
        for adjacency, value, mu, rho in both
    ]
    words = (
        f"“Without one {certificate.unit}'s data” has two definitions, for the same noise. The best guess is how often "
        "an attacker who knows everything else, and sees all releases, can tell whether the data were used; a coin "
        "flip is right 50 % of the time."
    )
    heads = ("neighbours", "ε", "factor", "best guess right", "μ", "ρ")
    body = paragraph(words) + table(heads, rows, f"At δ = {certificate.delta:g}")
    body += paragraph(
        "As a rule of thumb: up to 1 is strong, 1 to 4 is common in practice, and above 8 little is promised in "
        "the worst case. ε is an upper bound on what can be learned, not a measure of what was learned."
    )
    return body + "<h3>Everything on this account</h3>" + _account(certificate)


def _factor(value: float) -> str:
    return f"× {number(math.exp(value))}" if value < 20 else "× very many"


def _account(certificate: Certificate) -> str:
    account = certificate.account
    if account is None:
        return paragraph(
            "This run has no account: other runs on the same people are not added up, so their ε comes on top.", "warn"
        )
    rows: list[tuple[str, object]] = [
        ("this model", f"ε = {shown(certificate.epsilon)}"),
        (
            "everything",
            f"ε = {shown(float(account['epsilon']))} in {account['runs']} run{'s' * (account['runs'] != 1)}",
        ),
    ]
    if account["renews"] is not None:
        rows.append((f"of it in {account['period']}", f"ε = {shown(float(account['period_epsilon']))}"))
    if account["ceiling"] is not None:
        rows.append(("ceiling", f"ε = {float(account['ceiling']['epsilon']):g}"))
    rows.append(("account", account["id"]))
    caption = f"{account['adjacency']}, δ = {float(account['delta']):g}"
    return paragraph("The same people may be in several runs; what counts for them is the sum.") + facts(rows, caption)


def timeline(certificate: Certificate) -> str:
    """Return every release in the order in which it was made, with what had been spent after it."""
    groups = _grouped(certificate.releases)
    words = (
        f"{len(certificate.releases)} noisy sums or choices are all that left the {certificate.unit}s. Noise is in "
        "units of what one of them can change."
    )
    spent = _spent(certificate, groups)
    names = [_name(group) for group in groups]
    columns = [
        ("numbers", [f"{sum(r.coordinates for r in group):,}" for group in groups]),
        ("noise", [_noise(g[0]) for g in groups]),
    ]
    caption = "Releases, the first first"
    if spent is None:
        listed = list(zip(names, *(cells for _, cells in columns), strict=True))
        return paragraph(words) + table(("release", *(head for head, _ in columns)), listed, caption)
    scale = Scale.of(max(spent))
    drawings = [bar(scale, value) for value in spent]
    columns.append(("ε so far", [shown(value) for value in spent]))
    chart = drawn(names, drawings, columns, first="release, and ε spent after it", scale=scale, caption=caption)
    if len(groups) <= _MOST_SHOWN:
        return paragraph(words) + chart
    picture = steps(spent, f"ε spent after each of {len(groups)} releases, up to {shown(spent[-1])}")
    return paragraph(words) + picture + folded("Every release: the numbers behind this chart", chart)


def _grouped(releases: tuple[Release, ...]) -> list[list[Release]]:
    if len(releases) <= _MOST_RELEASES:
        return [[release] for release in releases]
    alike = [list(group) for _, group in groupby(releases, key=lambda release: (_stem(release.name), release.event))]
    if len(alike) <= 4 * _MOST_RELEASES:
        return alike
    kinds: dict[str, list[Release]] = {}
    for release in releases:
        kinds.setdefault(_stem(release.name), []).append(release)
    return list(kinds.values())


def _stem(name: str) -> str:
    return re.sub(r"[\s\d.]+$", "", name) or name


def _name(group: list[Release]) -> str:
    return group[0].name if len(group) == 1 else f"{_stem(group[0].name)} ({len(group)} times)"


def _noise(release: Release) -> str:
    event = release.event
    if not release.cost.private:
        return "none"
    if isinstance(event, GaussianEvent):
        sampled = "" if event.sampling_rate == 1 else f", {100 * event.sampling_rate:.3g} % asked"
        return f"{number(event.sigma / event.sensitivity.zero_out)}{sampled}"
    return f"choice, ε = {number(event.epsilon(Adjacency.ZERO_OUT))}"


def _spent(certificate: Certificate, groups: list[list[Release]]) -> list[float] | None:
    """Return ε after each group; None if it is infinite, or needs the slow accountant (sampling)."""
    costs = [release.cost for release in certificate.releases]
    if not certificate.certified or any(cost.sampling_rate < 1 for cost in costs):
        return None
    if sum(len(group) for group in groups) != len(costs) or any(
        group != list(certificate.releases[start : start + len(group)])
        for group, start in zip(groups, _starts(groups), strict=True)
    ):
        return None  # releases of one kind that were interleaved with others cannot be ordered in time
    return [
        compose(costs[: start + len(group)], certificate.adjacency, certificate.delta)
        for group, start in zip(groups, _starts(groups), strict=True)
    ]


def _starts(groups: list[list[Release]]) -> list[int]:
    starts, total = [], 0
    for group in groups:
        starts.append(total)
        total += len(group)
    return starts


def audited(part: PublicPart) -> str:
    """Return the verdict of an audit, if there is one."""
    if part.audit is None:
        return paragraph("No audit was published with this model. Anybody can run one, on synthetic data:") + _commands(
            "tacitly audit MODEL --quick"
        )
    broken = "BROKEN" in part.audit
    verdict = (
        "The audit contradicts the claim." if broken else "The strongest known attack did not contradict the claim."
    )
    return (
        paragraph(verdict, "warn" if broken else "good")
        + paragraph("The auditor fits many models on synthetic data and tries to tell whether one person took part.")
        + f"<pre>{text(part.audit.strip())}</pre>"
    )


def not_protected(certificate: Certificate) -> str:
    """Return what the guarantee does not cover, and who has to be trusted."""
    return (
        "<h3>Known to all</h3>"
        + bullets(certificate.public)
        + "<h3>Not covered</h3>"
        + bullets(certificate.not_covered)
        + "<h3>Who has to be trusted</h3>"
        + paragraph(certificate.trust)
        + ("<h3>Notes</h3>" + bullets(certificate.notes) if certificate.notes else "")
    )


def how_to_verify(part: PublicPart, *, private: bool) -> str:
    """Return how a reader can verify the page, and the result of the check when the page was made."""
    certificate = part.certificate
    again = "tacitly report MODEL --out again.html   # " + (
        "the public edition" if private else "this page, byte for byte"
    )
    verdict = verify(certificate.to_json(), files=part.files, allow_uncertified=True)
    words = (
        "A page can say anything. Take the model folder and derive ε again from its releases, with code that shares no "
        "arithmetic with what wrote them; whoever keeps the ledger can compare every word with it."
    )
    said = (
        "When this page was made, every check passed."
        if verdict.ok
        else f"When this page was made, checks failed: {', '.join(verdict.failed)}."
    )
    checks = table(("check", "result"), [(c.name, "ok" if c.ok else "FAILED") for c in verdict.checks], "Checks")
    rows: list[tuple[str, object]] = [
        ("made by", certificate.algorithm),
        ("curator", certificate.curator or "not stated"),
        ("region", certificate.region or "not stated"),
        ("date", certificate.date),
        ("code", f"tacitly {certificate.code['version']}"),
        ("code, SHA-256", certificate.code["sha256"] or "unknown"),
        ("certificate, digest", certificate.digest),
        ("signed by", certificate.signature["key"] if certificate.signature else "not signed"),
        *((f"{name}, SHA-256", digest) for name, digest in sorted(certificate.files.items())),
    ]
    return (
        paragraph(words)
        + _commands("tacitly verify MODEL", again)
        + paragraph(said, "good" if verdict.ok else "warn")
        + folded("Checks", checks)
        + facts(rows, "What to compare")
    )


def _commands(*lines: str) -> str:
    return "<pre>" + text("\n".join(lines)) + "</pre>"
