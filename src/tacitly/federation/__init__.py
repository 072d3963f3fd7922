"""Where the users are, and the two doors through which anything of theirs can leave."""
