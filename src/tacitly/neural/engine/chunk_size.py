"""The number of users that are computed at a time, from public sizes and the device only."""

from __future__ import annotations

import torch

from tacitly.neural.engine.update import UserUpdate


def chunk_for_updates(size: int, device: torch.device) -> int:
    """Return the users per chunk if every user has an update of ``size`` parameters in memory."""
    if device.type == "cpu":
        return 1
    memory = torch.cuda.get_device_properties(device).total_memory
    room = int(memory // 4 // max(1, 4 * 8 * size))  # the body, its gradient, intermediate copies, float64
    # Measured on an H200: CENTAUR's LeNet (735,000 parameters) is fastest at 128, its perceptron (236,000) at 1,024.
    return max(1, min(128 if size > 1 << 19 else 1024, 1 << max(0, room.bit_length() - 1)))


def chunk_for_rows(update: UserUpdate, device: torch.device) -> int:
    """Return the users per chunk if only their rows need memory; on a CPU a chunk's rows fit into the cache."""
    rows = max(2, update.training.rows)
    if device.type == "cpu":
        return 1 << max(0, min(64, 2048 // rows).bit_length() - 1)
    width = sum(sum(shape) for shape in update.body.shapes.values())
    each = 40 * rows * width + 24 * rows**2  # inputs and outputs of layers, and products of rows with rows
    room = int(torch.cuda.get_device_properties(device).total_memory // 8 // each)
    return max(1, min(1024, 1 << max(0, room.bit_length() - 1)))
