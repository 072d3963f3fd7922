"""Theoretical rates of the methods' papers, to compare results with: what ``tacitly.theory`` offers.

Each method's folder may have a ``theory`` module; they are collected here.
"""

from tacitly.methods.trace_regression.theory import loop_rate, minimax_lower_bound, paper_sensitivities, start_rate

__all__ = ["loop_rate", "minimax_lower_bound", "paper_sensitivities", "start_rate"]
