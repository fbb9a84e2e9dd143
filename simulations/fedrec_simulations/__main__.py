"""`python -m fedrec_simulations` is the `fedrec` command, with this interpreter and this installation."""

from fedrec_simulations.command import main

main()
