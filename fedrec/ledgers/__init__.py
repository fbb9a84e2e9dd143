"""Ledgers of what was spent: entries in a hash chain, written durably before anything leaves.

`chain` says when entries follow each other, `head_file` when a ledger has gone back in time,
`transactions` what is on disk when a write has ended. Two stores are made of these: tables in
SQLite (`sqlite_ledger`) and lines of JSON (`chain`). A party's own ledger says what an entry is
and what it costs.
"""
