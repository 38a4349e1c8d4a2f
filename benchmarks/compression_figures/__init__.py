"""Parts of the benchmark of compression."""
