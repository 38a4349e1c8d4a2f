"""The parts of benchmarks/spend.py."""
