"""Keeping replicas in step: what travels to whom, what is taken from whom, and erasing at all of them."""
