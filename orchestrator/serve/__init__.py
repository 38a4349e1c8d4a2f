"""Serves a `Hybrid` to other programs over HTTP."""
