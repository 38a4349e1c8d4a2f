"""What this machine has: processors, memory, power, heat, and the engines' own lists of what they can compute on.

The readers of Linux take the root of a file system, so that they can be shown another machine's /proc and /sys.
"""
