"""The parts of `benchmarks/gateway.py`."""
