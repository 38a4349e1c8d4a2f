"""Texts as vectors, on this device: what routing, memory and caches compare meanings by."""
