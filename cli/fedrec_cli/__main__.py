"""`python -m fedrec_cli` is the `fedrec` command, with this interpreter and this installation."""

from fedrec_cli.main import main

main()
