"""Simple private baselines: biases, item-item weights, and popularity."""
