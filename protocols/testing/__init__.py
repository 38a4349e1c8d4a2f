"""Public tests and fault tools for implementers of `Agent`."""
