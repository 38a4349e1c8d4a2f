"""The sweep: configurations x tasks x seeds, one record per run, and what the records show."""
