"""`auto`: which strategy, with which knobs, serves a task best, learned from the recorded outcomes of similar tasks."""
