"""`python -m nearfar` is the command `nearfar`."""

from nearfar.orchestrator.cli import main

if __name__ == "__main__":
    main()
