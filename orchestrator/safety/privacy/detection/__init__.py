"""Finding private data in texts that nobody has labelled. A second gate: what it misses, no label has called private either."""
