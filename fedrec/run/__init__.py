"""Runs on one machine: simulate, account, and what a run keeps."""
