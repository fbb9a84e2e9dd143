"""Posterior sampling of Fast DPMF, and the stochastic gradient kernel beneath it."""
