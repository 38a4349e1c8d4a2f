"""The console: pages for the owner of a `Hybrid`, made on the server."""
