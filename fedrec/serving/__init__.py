"""Private serving: a public bundle, a few noised coefficients, an exact ranking.

Knows no process."""
