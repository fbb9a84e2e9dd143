"""Noisy descent on a linear item encoder, our rewrite of AM-DPSGD: a recipe by entry point."""
