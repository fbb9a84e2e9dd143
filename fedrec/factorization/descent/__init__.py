"""Noisy gradient descent: DP-GD, Ada-DPGD and AM-DPSGD."""
