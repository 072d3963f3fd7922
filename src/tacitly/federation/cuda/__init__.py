"""The GPU engine: users' rows on a device, sums by device forms of queries; noise and ledger stay on the host.

``PrivateFedRep(..., engine="cuda")``. The guarantee is the same as that of the local engine, and so are the results:
integers on the grid, from blocks of 1,024 users. Adjacency, sensitivity and event of a release are those of its query;
:mod:`tacitly.federation.cuda.sums` explains why they hold for numbers that a device rounds. A query without a device
form is summed on the host, as the local engine does it, and so is one whose device form disagrees with its definition
on synthetic users.

Every device form has a form in plain PyTorch that runs on any device. Tests compare it with the local engine;
``benchmarks/speed/cuda.py`` compares it with the Triton kernels on a GPU.
"""
