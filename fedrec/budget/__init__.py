"""Division of a user's budget over items: private counts, weights, sampling."""
