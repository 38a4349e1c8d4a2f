"""`Hybrid`: prepare a task, route it, serve it, settle its bill, record it."""
