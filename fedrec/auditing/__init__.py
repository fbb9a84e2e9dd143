"""`fedrec audit`: attacks on what leaves a client or an aggregator, and the least epsilon that they
prove."""
