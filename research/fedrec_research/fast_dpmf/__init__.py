"""Fast DP matrix factorisation as published (Liu, Wang, Smola 2015): a recipe by entry point."""
