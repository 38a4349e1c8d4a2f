"""A stateful world of contacts, calendar, mail, notes and payments."""
