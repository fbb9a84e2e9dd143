"""Task-weighted noisy descent (Ada-DPALS Alg. 2) on ratings and clicks: a recipe by entry point."""
