"""The tables of a scenario, a module each: `fedrec.settings` puts them together and says which
choices contradict each other."""
