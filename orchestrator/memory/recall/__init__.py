"""What an agent remembers: the work at hand, what happened, and what is known; and how the right part of it is found again."""
