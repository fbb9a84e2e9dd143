"""How a user's budget is divided over items: private counts, weights, sampling."""
