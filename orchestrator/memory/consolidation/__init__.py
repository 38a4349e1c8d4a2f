"""Consolidation: while the device rests, what was remembered is summed up, repetitions are merged, and what is outdated is retired."""
