"""The figures of the router, one module for each part of it."""
