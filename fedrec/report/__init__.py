"""Reports of a run for a person: one self-contained page, and a table for the terminal."""
