"""Synchronize replicas: choose what is sent to a peer, check what a peer sends, and erase at all replicas."""
