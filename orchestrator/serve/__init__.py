"""Serve a `Hybrid` to other programs, by their protocols."""
