"""Is it fast? Our code against a peer's, written as its users write it; results in results/."""
