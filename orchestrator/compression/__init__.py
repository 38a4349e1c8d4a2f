"""Long conversations made to fit a token budget, such that later turns find in them what they need."""
