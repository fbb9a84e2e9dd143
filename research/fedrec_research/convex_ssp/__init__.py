"""SSP for convex losses of clicks, our design after AM-SSP Alg. 7: a recipe by entry point."""
