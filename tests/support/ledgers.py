"""What a ledger has stored, for tests that look at values."""

from __future__ import annotations

from tacitly.privacy.ledger import Ledger


def published_values(ledger: Ledger) -> dict[int, bytes]:
    """Return the stored value of each published release of a ledger with one run, by its number."""
    book = ledger.book
    return {index: ledger._file.blob(*place) for (_, index), place in sorted(book.values.items())}
