"""Whom a gateway lets ask its agents, how often, and in which order."""
