"""Tools of MCP servers: configured, approved once by the user, and called as untrusted tools."""
