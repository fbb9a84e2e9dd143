"""Convex sufficient statistics perturbation on clicks."""
