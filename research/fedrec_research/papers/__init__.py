"""The figures and tables of the papers, re-made on whatever data is there, beside what was
published."""
