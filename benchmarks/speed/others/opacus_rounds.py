"""One round of DP-FedAvg with Opacus: every user's gradient of a network is clipped and added. Needs opacus.

A user is one sample of Opacus: its rows are another axis, and its loss is their mean. Without noise, so that the sum
can be compared; the head is fixed.
"""

import sys
import warnings
from pathlib import Path

import numpy as np
import opacus
import torch
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from timing import report
from torch import nn

warnings.simplefilter("ignore")


def main() -> None:
    folder, repeats, chunk = Path(sys.argv[1]), int(sys.argv[2]), 250
    torch.set_num_threads(1)
    weights = np.load(folder / "weights.npz")
    layers: list[nn.Module] = []
    for number in range(len(weights.files) // 2):
        out, inside = weights[f"{number}.weight"].shape
        layers += [nn.Linear(inside, out), nn.ReLU()]
        with torch.no_grad():
            layers[-2].weight.copy_(torch.as_tensor(weights[f"{number}.weight"]))
            layers[-2].bias.copy_(torch.as_tensor(weights[f"{number}.bias"]))
    network = nn.Sequential(*layers[:-1])
    for parameter in network[-1].parameters():
        parameter.requires_grad_(False)
    model = GradSampleModule(network, loss_reduction="sum")
    clip = float(np.load(folder / "clip.npy"))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    plain = torch.optim.SGD(trained, lr=1.0)
    optimizer = DPOptimizer(
        plain, noise_multiplier=0.0, max_grad_norm=clip, expected_batch_size=1, loss_reduction="sum"
    )
    X, y = torch.as_tensor(np.load(folder / "X.npy")), torch.as_tensor(np.load(folder / "y.npy")).long()

    def one_round() -> torch.Tensor:
        total = torch.zeros(sum(parameter.numel() for parameter in trained))
        for start in range(0, len(X), chunk):  # gradients of all users at once would not fit
            optimizer.zero_grad()
            rows, labels = X[start : start + chunk], y[start : start + chunk]
            losses = nn.functional.cross_entropy(model(rows).transpose(1, 2), labels, reduction="none")
            losses.mean(dim=1).sum().backward()
            optimizer.clip_and_accumulate()
            total += torch.cat([parameter.summed_grad.flatten() for parameter in trained])
        return total

    total = report(one_round, repeats, version=f"opacus {opacus.__version__}")
    np.save(folder / "found.npy", total.numpy())


if __name__ == "__main__":
    main()
