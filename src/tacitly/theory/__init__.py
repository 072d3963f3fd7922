"""The papers' theorems as functions: rates, conditions, printed constants, and their errors.

One module per paper: :mod:`~tacitly.theory.centaur`, :mod:`~tacitly.theory.fedpower`,
:mod:`~tacitly.theory.trace_regression`, :mod:`~tacitly.theory.private_fedrep`, :mod:`~tacitly.theory.low_rank_sparse`.
Each function states the formula, its theorem, and its errors. :func:`how_many` answers the first question: how many
users and rows do I need?

Rates have unknown constants. They are arguments, 1 unless stated. So a value shows how an error changes with n, d or ε,
not how large it is; :func:`tacitly.plan` predicts that by simulation.
"""

from tacitly.theory import centaur, fedpower, low_rank_sparse, private_fedrep, trace_regression
from tacitly.theory.sample_sizes import Needed, how_many
from tacitly.theory.trace_regression import loop_rate, minimax_lower_bound, paper_sensitivities, start_rate

__all__ = [
    "Needed",
    "centaur",
    "fedpower",
    "how_many",
    "loop_rate",
    "low_rank_sparse",
    "minimax_lower_bound",
    "paper_sensitivities",
    "private_fedrep",
    "start_rate",
    "trace_regression",
]
