"""An agent's memory: working notes, episodes and facts, and how the right part of it is recalled."""
