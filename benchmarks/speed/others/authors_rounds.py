"""One round of the script published by the authors of Private FedRep; its path is the last argument.

Its function ``train_fedrep_dp`` runs for one round, without noise. Needs PyTorch and Matplotlib.
"""

import contextlib
import io
import sys
from pathlib import Path

import numpy as np
import torch
from timing import report


def main() -> None:
    folder, repeats, script = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    # Its experiments, which come last, have syntax of Python 3.12, and nothing here needs them.
    source, authors = Path(script).read_text("utf-8").partition("def run_experiment")[0], {"__name__": "authors"}
    exec(compile(source, script, "exec"), authors)
    X, y, basis = (torch.as_tensor(np.load(folder / f"{name}.npy")) for name in ("X", "y", "basis"))
    rows, targets = list(X), list(y)

    def one_round() -> torch.Tensor:
        with contextlib.redirect_stdout(io.StringIO()):
            found = authors["train_fedrep_dp"](
                *(rows, targets, *basis.shape), num_rounds=1, max_grad_norm=1.0, noise_std=0.0, U_init=basis.clone()
            )
        return found[0]

    after = report(one_round, repeats, version="the authors' script")
    np.save(folder / "found.npy", after.numpy())


if __name__ == "__main__":
    main()
