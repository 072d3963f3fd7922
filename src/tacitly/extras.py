"""One-sentence advice if an optional library is not installed."""

from __future__ import annotations

EXTRAS = {
    "cryptography": ("sites and signatures need the library cryptography", "flower"),
    "flwr": ("sites need Flower", "flower"),
    "matplotlib": ("pictures need Matplotlib", "plots"),
    "ray": ("the engine 'ray' needs Ray", "ray"),
    "starlette": ("the local page needs Starlette", "ui"),
    "torch": ("networks need PyTorch", "neural"),
    "transformers": ("folders of Hugging Face need transformers", "huggingface"),
    "uvicorn": ("the local page needs Uvicorn", "ui"),
}


def advice(error: ModuleNotFoundError) -> str | None:
    """Return what to install if a module of an extra was not found; None for any other module.

    >>> advice(ModuleNotFoundError("No module named 'ray'", name="ray"))
    "the engine 'ray' needs Ray: pip install 'tacitly[ray]'."
    """
    what = EXTRAS.get((error.name or "").partition(".")[0])
    return None if what is None else f"{what[0]}: pip install 'tacitly[{what[1]}]'."
