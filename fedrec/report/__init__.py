"""What a run tells a person: one self-contained page, and a table for the terminal."""
