"""CENTAUR (Shen et al. 2023): a small network for tables or images by user, without writing PyTorch."""

import itertools
from typing import Any

from tacitly.methods.options import CLASSES, TARGET_RANGE, low_high
from tacitly.methods.registry import ON_HOSTS, AuditTrial, Method, Option, Parameters, Trial


def whole_numbers(text: str) -> tuple[int, ...]:
    """Read sizes separated by commas or by an x.

    >>> whole_numbers("16,8"), whole_numbers("1x28x28")
    ((16, 8), (1, 28, 28))
    """
    try:
        sizes = tuple(int(word) for word in text.replace("x", ",").split(","))
    except ValueError:
        sizes = ()
    if not sizes or min(sizes) < 1:
        raise ValueError(f"expected whole numbers such as 16,8 or 1x28x28. Found {text!r}.")
    return sizes


def _check(parameters: Parameters) -> None:
    if parameters.get("classes") is not None and parameters.get("target_range") is not None:
        raise ValueError("--target-range is for numbers. Found --classes too.")
    shape = parameters.get("shape")
    if shape is None:
        return
    if len(shape) != 3 or shape[1] != shape[2]:
        raise ValueError(f"--shape must be CHANNELSxSIDExSIDE, such as 1x28x28. Found {'x'.join(map(str, shape))}.")
    if parameters.get("classes") is None:
        raise ValueError("--shape is for images in classes: add --classes.")
    if parameters.get("widths") is not None:
        raise ValueError("--widths is for tables: with --shape one layer is learned on fixed filters. Leave it out.")


def _learned(columns: int, parameters: Parameters) -> int:
    """Return the number of learned parameters; for images, those on the 128 directions."""
    if parameters.get("shape"):
        return 129 * len(parameters["classes"])
    edges = [columns, *(parameters.get("widths") or (16,))]
    return sum((a + 1) * b for a, b in itertools.pairwise(edges))


def small_network(**settings: Any) -> dict[str, Any]:
    """Return a network that an audit fits in a second."""
    steps = {"rounds": 1, "local_steps": 1, "head_steps": 1}
    return {"classes": (0, 1), "widths": (2,), "device": "cpu", "random_state": 0, **steps, **settings}


METHOD = Method(
    estimator="estimator:TableNetwork",
    name="networks",
    data="a table of numbers or pixels, and a class or number that is not linear in them",
    result="a shared network, one personal head per user",
    page="centaur.md#from-the-command-line",
    options=(
        CLASSES,
        Option(
            name="widths", kind=whole_numbers, default=None, help="Widths of hidden layers, with commas; default: 16."
        ),
        Option(name="shape", kind=whole_numbers, default=None, help="Rows are images of this shape, such as 1x28x28."),
        Option(
            name="feature_range",
            kind=low_high,
            default=None,
            help="Public range of all features, as low:high, such as 0:255; default: they are about -1 to 1.",
        ),
        TARGET_RANGE,
        Option(name="rounds", kind=int, default=10, help="Noisy steps of the shared network."),
    ),
    check=_check,
    rank=None,
    wire=("queries:NetworkUpdate", "queries:NetworkHeads", "named_network:NamedNetwork"),
    engines=ON_HOSTS,
    limits={"node": "`sampling_rate=1` only: nodes see who answers"},
    coordinates=_learned,
    small=lambda d, rank, words: {"rounds": 1, "widths": (2,)},
    trials=(
        # Bodies of two engines agree to float32's last bit. Heads of users with few active units are as large as 65,
        # and agree to five digits.
        Trial(
            "network", {"widths": (3,), "rounds": 2, "feature_range": (-6, 6), "target_range": (-9, 9)}, tolerance=1e-3
        ),
        Trial(
            "network, classes", {"classes": (0, 1, 2), "rounds": 2, "feature_range": (-6, 6)}, labels=3, tolerance=1e-5
        ),
    ),
    audits=(AuditTrial("networks, from a table", small_network, depth="brief", title="neural.TableNetwork, 1 round"),),
)
