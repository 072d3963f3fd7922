"""Where users are, and the two doors: the only functions that release anything computed from their rows."""
