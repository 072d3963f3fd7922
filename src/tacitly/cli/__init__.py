"""The ``tacitly`` command: one module per command."""
