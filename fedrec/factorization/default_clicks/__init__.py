"""Default recipe on clicks: counts, a Gram of pairs of items, and item-item weights or factors."""
