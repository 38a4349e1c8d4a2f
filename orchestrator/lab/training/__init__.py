"""Train the head of the router on recorded outcomes."""
