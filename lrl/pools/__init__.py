"""Actor pools: where rows come from, whatever makes them."""
