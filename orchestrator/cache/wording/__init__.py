"""The form in which two questions that ask the same are equal: see `canonical`."""
