"""The figures of `benchmarks/faults.py`, a module for each part."""
