"""What the figures of drafting are made with."""
