"""What all that nearfar keeps in Postgres shares: connections, and what the server's errors mean."""
