"""Recorded outcomes replayed through the router: simulation, calibration, and the figures that sum them up."""
