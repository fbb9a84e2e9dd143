"""`fedrec inspect`: every field and byte that left each party, from their own folders."""
