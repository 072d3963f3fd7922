"""Before anybody's data are touched: what an ε and a number of users will buy, by simulation on made-up users."""

from tacitly.planning.planner import plan
from tacitly.planning.result import Line, Plan
from tacitly.planning.shape import Shape

__all__ = ["Line", "Plan", "Shape", "plan"]
