"""`python -m nearfar.orchestrator.cli` is `nearfar`."""

from . import main

main()
