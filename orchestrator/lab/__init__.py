"""The research bench: sweeps, worlds, replays, simulation, calibration and blame. The core never imports it."""
