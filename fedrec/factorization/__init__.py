"""Matrix factorisation from sufficient statistics: exact sums, solves, alternating minimisation,
recipes."""
