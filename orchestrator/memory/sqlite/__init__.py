"""The store on SQLite: a file on the device."""
