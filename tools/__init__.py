"""Programs that make what is committed, and help with development; not installed."""
