"""Strategies, router, tools and the command line: what turns agents into an application."""
