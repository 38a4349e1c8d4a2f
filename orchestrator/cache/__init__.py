"""Caches in front of agents: answers that were given before, and plans that worked before. Off unless `[cache]` turns them on."""
