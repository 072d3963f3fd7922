"""The subcommands of ``tacit``, a file a subject."""
