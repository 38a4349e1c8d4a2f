"""Parts of `benchmarks/memory.py`. Each has `figures(data, quick=...)`."""
