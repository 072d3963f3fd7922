"""Privacy: what is promised, what each release costs, and the checks of both. Imports no other part of tacitly."""
