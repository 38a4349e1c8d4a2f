"""The hardware of this machine: processors, memory, power, heat, and the engines' own lists of processors they can compute on.

The readers for Linux take the root of a file system, so that tests can show them another machine's /proc and /sys.
"""
