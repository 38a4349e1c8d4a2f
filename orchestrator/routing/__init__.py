"""The router: which agent serves a task or subtask, by rules, by predicted quality, cost and latency, and by evidence about a draft."""
