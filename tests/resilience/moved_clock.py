"""A clock that tests move on."""


class MovedClock:
    """Seconds that only pass when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now
