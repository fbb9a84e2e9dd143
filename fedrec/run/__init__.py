"""Runs on one machine: simulate, account, plan, and what a run keeps."""
