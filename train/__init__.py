"""Trains, exports and measures the two small models that ship with Nearfar. Not part of the wheel."""
