"""Verbs of the `fedrec` command that train, account, audit and write pages."""
