"""The programs of a federation: what a coordinator runs, what a site runs, and their folders."""
