"""Data that stay: what a run begins with, what leaves the device and in which form, and the record of it."""
