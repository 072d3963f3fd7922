"""The supported Flower version: its fleet protocol is private, so only the tested version is accepted."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

LINE = "1.41"


class OtherFlower(RuntimeError):
    """Flower is missing, or not the supported version."""


def check_flower() -> None:
    """Raise unless the installed Flower belongs to the supported release line.

    :mod:`tacitly.federation.flower.fleet` replaces private parts of Flower. In another version they might have other
    names and would stay in place: a node would exit where it should reconnect.
    """
    try:
        found = version("flwr")
    except PackageNotFoundError:
        raise OtherFlower("a federation needs Flower: pip install 'tacitly[flower]'.") from None
    if ".".join(found.split(".")[:2]) != LINE:
        raise OtherFlower(f"a federation needs Flower {LINE}: pip install 'tacitly[flower]'. Found {found}.")
