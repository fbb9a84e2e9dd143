"""`fedrec demo`: everything on invented data, in one command.

Alone it trains and reports in one process; with `--deployment` it starts real parties: `people`
invents who lives at the sites, `parties` starts, kills and asks them, `evidence` reads what each
kept, `shown` prints it, and `deployment` is the order of it all.
"""
