"""Accuracy of ratings and rankings, by popularity bucket, beside controls."""
