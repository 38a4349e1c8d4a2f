"""`SharedAmount`: what parts of unequal weight share, one after the other, such that the rest has what one leaves over."""


class SharedAmount:
    """Divides turns, dollars, tokens or anything else that is spent.

    A part takes its share when it starts: the least that each is given, and of what is left beyond that the proportion of its weight to the
    weights of all that have not started. So shares are positive, their sum never goes beyond the amount where that is enough for the least
    of each, and the last part gets all that is left.

    Args:
        amount: to be shared; not negative.
        parts: how many there are. Their weights are relative to the average part, so that they add up to this number.
        least: what each part is given in any case.
    """

    def __init__(self, amount: float, parts: int, *, least: float = 0.0) -> None:
        self.left = amount
        self._waiting = parts
        self._weight = float(parts)
        self._least = least

    def take(self, weight: float = 1.0) -> float:
        """Reserve the share of a part that starts."""
        beyond = max(self.left - self._waiting * self._least, 0.0)
        proportion = weight / self._weight if self._waiting > 1 else 1.0
        share = self._least + beyond * min(proportion, 1.0)
        self.left -= share
        self.leave_out(weight)
        return share

    def leave_out(self, weight: float = 1.0) -> None:
        """Count a part out that will never start, so that the others share what it would have had."""
        self._waiting -= 1
        self._weight -= weight

    def give_back(self, amount: float) -> None:
        """Return what a part did not use, for those that start later. What it used beyond its share is negative."""
        self.left += amount
