"""Data of a scenario: reading, splits, the sealed test set, budgets of data sets."""
