"""`fedrec status`: whether parties are up, and what they do."""
