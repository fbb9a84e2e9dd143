"""`fedrec ledger`, `backup` and `restore`: what ledgers hold, and copies of a party's state."""
