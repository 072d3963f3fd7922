"""The papers' algorithms: short programs that call the door."""
