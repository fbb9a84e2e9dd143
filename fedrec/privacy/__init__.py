"""Mechanisms, guarantees and their accounting."""
