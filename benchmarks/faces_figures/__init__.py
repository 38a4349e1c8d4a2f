"""The parts of benchmarks/faces.py."""
