"""What an implementation of `Agent` is tested with: the conformance suite, its transports and a chaos proxy."""
