"""Default recipe on ratings: biases, content and factors by whitened item steps."""
