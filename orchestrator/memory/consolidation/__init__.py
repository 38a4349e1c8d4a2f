"""Consolidate the memory while the device rests: summarize sessions, merge repeated facts, retire outdated ones."""
