"""The programs of a federation: the coordinator, the sites, and their folders."""
