"""The `fedrec` command: its entry point, the verbs of the parties, and the tools of those who run
them."""
