"""Who guesses tokens waits ever longer, and nobody else does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearfar.protocols import RateLimited
from nearfar.protocols.access import FailedAttempts, home_of
from nearfar.protocols.limits import ADDRESSES, FAILURES_KEPT_SECONDS, FREE_FAILURES, LONGEST_WAIT_SECONDS

HOME = "192.0.2.1"


class Clock:
    def __init__(self) -> None:
        self.now = 1e6

    def __call__(self) -> float:
        return self.now


def guess(attempts: FailedAttempts, clock: Clock, address: str = HOME) -> float:
    """Wait as long as one has to and show another wrong token; returns how long that was."""
    wait = wait_of(attempts, address)
    clock.now += wait
    attempts.check(address, "wrong")
    attempts.failed(address)
    return wait


def wait_of(attempts: FailedAttempts, address: str = HOME) -> float:
    """Seconds until a token from there is looked at."""
    try:
        attempts.check(address, "wrong")
    except RateLimited as error:
        return error.retry_after or 0.0
    return 0.0


def test_waits_double_up_to_a_minute() -> None:
    clock = Clock()
    attempts = FailedAttempts(clock)
    waits = [guess(attempts, clock) for _ in range(FREE_FAILURES + 9)]
    assert waits[:FREE_FAILURES] == [0] * FREE_FAILURES
    assert waits[FREE_FAILURES:] == pytest.approx([1, 2, 4, 8, 16, 32, 60, 60, 60])


def test_a_day_has_few_guesses() -> None:
    clock = Clock()
    attempts = FailedAttempts(clock)
    began, guesses = clock.now, 0
    while clock.now - began < 24 * 3600:
        guess(attempts, clock)
        guesses += 1
    assert guesses <= 24 * 3600 / LONGEST_WAIT_SECONDS + FREE_FAILURES + 7


def test_waiting_ends_by_itself_and_is_forgotten_after_a_while() -> None:
    clock = Clock()
    attempts = FailedAttempts(clock)
    for _ in range(FREE_FAILURES + 3):
        guess(attempts, clock)
    clock.now += FAILURES_KEPT_SECONDS
    assert [guess(attempts, clock) for _ in range(FREE_FAILURES)] == [0] * FREE_FAILURES


def test_other_addresses_do_not_wait() -> None:
    clock = Clock()
    attempts = FailedAttempts(clock)
    for _ in range(FREE_FAILURES):
        attempts.failed(HOME)
    attempts.check("192.0.2.2", "any")


def test_a_token_that_was_right_from_there_is_never_held_back_and_another_one_not_for_long() -> None:
    clock = Clock()
    attempts = FailedAttempts(clock)
    attempts.succeeded(HOME, "known")
    for _ in range(100):
        attempts.failed(HOME)
    attempts.check(HOME, "known")
    with pytest.raises(RateLimited):
        attempts.check(HOME, "right, and never seen from there")
    clock.now += LONGEST_WAIT_SECONDS
    attempts.check(HOME, "right, and never seen from there")


def test_a_token_of_ones_own_buys_no_guesses() -> None:
    clock = Clock()
    attempts = FailedAttempts(clock)
    for _ in range(FREE_FAILURES):
        attempts.failed(HOME)
        attempts.succeeded(HOME, "own")
    with pytest.raises(RateLimited):
        attempts.check(HOME, "guess")


def test_what_is_kept_is_bounded() -> None:
    clock = Clock()
    attempts = FailedAttempts(clock)
    for number in range(3 * ADDRESSES):
        attempts.failed(str(number))
        attempts.succeeded(str(number), "token")
    assert len(attempts._failures) == len(attempts._right) == ADDRESSES


@pytest.mark.parametrize(("peer", "home"), [
    ("ipv4:192.0.2.1:443", "192.0.2.1"),
    ("ipv6:%5B2001:db8:1:2:3:4:5:6%5D:443", "2001:db8:1:2::/64"),
    ("ipv6:[2001:db8:1:2::ffff]:1", "2001:db8:1:2::/64"),
    ("ipv6:%5B::ffff:192.0.2.1%5D:443", "192.0.2.1"),
    ("ipv6:%5Bfe80::1%25eth0%5D:443", "fe80::/64"),
    ("unix:/run/hub.sock", None),
    ("unix:", None),
    ("unix-abstract:x", None),
])  # fmt: skip
def test_home_is_what_a_peer_cannot_change(peer: str, home: str | None) -> None:
    assert home_of(peer) == home


@given(st.lists(st.tuples(st.floats(0, 2000), st.booleans()), max_size=60))
def test_no_guess_is_looked_at_before_its_time(steps: list[tuple[float, bool]]) -> None:
    clock = Clock()
    attempts = FailedAttempts(clock)
    looked_at: list[float] = []
    for pause, has_own_token in steps:
        clock.now += pause
        if has_own_token:
            attempts.succeeded(HOME, "own")
        wait = wait_of(attempts)
        assert wait <= LONGEST_WAIT_SECONDS
        if not wait:
            attempts.failed(HOME)
            looked_at.append(clock.now)
    for first, last in zip(looked_at, looked_at[FREE_FAILURES:], strict=False):
        assert last - first >= 1
