"""Trainings over partitioned data: a round is a map over parts, a merge of exact sums, and a finish
with noise drawn once."""
