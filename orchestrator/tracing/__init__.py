"""What happened in each run, kept to be read afterwards: steps, tool calls, decisions, what they cost, and which of them failed it."""
