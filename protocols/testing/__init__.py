"""Test tools for implementations of `Agent`: the conformance suite, its transports and a chaos proxy."""
