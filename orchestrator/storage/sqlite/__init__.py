"""What all SQLite files of nearfar share: how they are opened, written by one and read by many, and what their errors mean."""
