"""Tables in Postgres: connections, transactions, and the server's errors."""
