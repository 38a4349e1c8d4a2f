"""Serve a `Hybrid` as an agent of the A2A protocol 1.0."""
