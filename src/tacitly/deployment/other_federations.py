"""What a coordinator's account does not add up: other federations at the same sites.

A coordinator knows sites by their keys and no users, so it recognises a site in its other federations, and does not
know whether the users there are the same. The account of the users, at the site, adds up all federations that the site
joined (:mod:`tacitly.cli.join`).
"""

from __future__ import annotations

from pathlib import Path

from tacitly.deployment.settings import Settings
from tacitly.privacy import home
from tacitly.privacy.certificate import shown
from tacitly.privacy.guarantee import Adjacency
from tacitly.privacy.ledger import Ledger, LedgerMismatch

NOT_COUNTED = (
    "the account of a coordinator counts its own run only. Other federations at the same sites, and fits there, are "
    "added up in each site's own account"
)


def other_federations(folder: Path, settings: Settings) -> tuple[str, ...]:
    """Return what this machine knows of other federations at the same sites, one line for each that has spent."""
    found, delta = [], settings.delta or 1e-6
    for seen in home.known().values():
        place = Path(seen.path)
        other = place.parent
        if not (place.is_file() and (other / "settings.json").is_file()) or other.resolve() == folder.resolve():
            continue
        try:
            theirs = Settings.load(other)
            with Ledger(place) as account:
                spent = account.spent(Adjacency(settings.adjacency), delta=delta)
        except (LedgerMismatch, OSError, ValueError, KeyError, TypeError):
            continue  # not a coordinator's folder, or one of another version
        keys = {card.key for card in theirs.cards}
        sites = [card.name for card in settings.cards if card.key in keys]
        if sites and spent:
            found.append(
                f"{', '.join(sites)}: also in another federation of this coordinator, run {theirs.run}, which has "
                f"spent ε = {shown(spent)} ({settings.adjacency}, δ = {delta:g}) and is not counted here"
            )
    return tuple(sorted(found))
