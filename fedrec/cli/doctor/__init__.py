"""`fedrec doctor`: examinations of a machine and of parties before a run."""
