"""Measure the energy that computing takes: readers of the machine's counters, and a meter that reads one of them over intervals."""

from .look import EnergyReader, ReaderLook
from .meter import Interval, Meter
from .readers import open_reader

__all__ = ["EnergyReader", "Interval", "Meter", "ReaderLook", "open_reader"]
