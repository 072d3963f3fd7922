"""Privacy: guarantees, the cost of each release, and the verification of both. Imports no other part of tacitly."""
