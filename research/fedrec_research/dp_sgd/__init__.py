"""DP-SGD of a plain recommender at one trusted curator: the recipe, and users sampled in secret."""
