"""Admission of a gateway's callers: their rates, and the order in which they are served."""
