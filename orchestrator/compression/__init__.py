"""Compress long conversations to a token budget, keeping the parts that later turns need."""
