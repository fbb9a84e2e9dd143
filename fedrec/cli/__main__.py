"""`python -m fedrec.cli` is the `fedrec` command, with this interpreter and this installation."""

from fedrec.cli.main import main

main()
