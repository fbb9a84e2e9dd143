"""Playing of all parties on one machine: runtimes of real parties, and the demonstration."""
