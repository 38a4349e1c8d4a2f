"""Detectors of private data in unlabelled texts. They are the second check: labels come first."""
