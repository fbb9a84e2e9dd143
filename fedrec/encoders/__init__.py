"""Encoders of public item features."""
