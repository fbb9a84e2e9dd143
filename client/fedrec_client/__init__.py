"""The client role: local data, ledger, reports."""
