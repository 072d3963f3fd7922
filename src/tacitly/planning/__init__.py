"""Predict the accuracy for an ε and a number of users by simulation, before any private data are read."""

from tacitly.planning.planner import plan
from tacitly.planning.result import Line, Plan
from tacitly.planning.shape import Shape

__all__ = ["Line", "Plan", "Shape", "plan"]
