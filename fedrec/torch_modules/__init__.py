"""Recommenders that a person writes as a PyTorch module: what a module must have, the gradient of
one person, and the released model. Trained by `fedrec.recipes.torch`."""
