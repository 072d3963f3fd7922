"""One file per paper table or figure."""
