"""Traces of runs: steps, tool calls, decisions and their cost, recorded to be read, replayed and analysed afterwards."""
