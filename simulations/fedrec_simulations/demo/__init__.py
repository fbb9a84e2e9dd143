"""`fedrec demo`: everything on invented data, in one command."""
