"""Messages between the parties: reports, questions, releases; and the rounds that use them."""
