"""Which step failed a run: replays with one step corrected, on recorded effects only."""
