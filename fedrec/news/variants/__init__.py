"""Variants of news training, a module each: what it promises, what its releases cost, and how it
trains (`fedrec.news.variant`)."""
