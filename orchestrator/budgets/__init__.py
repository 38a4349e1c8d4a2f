"""What may be spent and what was: reserved before a call, settled after it, shared by processes, and kept across restarts."""
