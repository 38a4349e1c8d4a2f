"""Values that every room shares: the task, its policy, labels, events, results and tools. They import `protocols` alone."""
