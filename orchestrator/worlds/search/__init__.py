"""A world of passages that are searched and opened."""
