"""Budgets: amounts are reserved before a call and settled after it, shared by processes, and kept across restarts."""
