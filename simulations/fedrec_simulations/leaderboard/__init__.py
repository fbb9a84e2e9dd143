"""A leaderboard that anybody can join: protocols, rows as files, and tables that rank only what may
be compared."""
