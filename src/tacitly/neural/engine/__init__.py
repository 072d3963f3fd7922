"""How users' updates are computed: many at once on a GPU, a few coarse workers on a CPU."""
