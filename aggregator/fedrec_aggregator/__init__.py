"""The aggregator role: sums once, noises once."""
