"""Runs that outlive the process that began them."""
