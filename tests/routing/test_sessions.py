"""Which agent a session stays with."""

from nearfar.orchestrator.routing.steering import Sessions


def test_the_agent_of_the_last_answer_is_remembered_for_a_while() -> None:
    moments = iter([0.0, 10.0, 15.0, 26.0])
    sessions = Sessions(lambda: next(moments))
    sessions.keep("chat", "near")
    sessions.keep("chat", "far")
    assert sessions.agent_of("chat", seconds=15) == "far"
    assert sessions.agent_of("chat", seconds=15) is None


def test_a_session_that_nobody_served_has_no_agent() -> None:
    assert Sessions(lambda: 0.0).agent_of("chat", seconds=60) is None


def test_the_oldest_sessions_are_forgotten() -> None:
    sessions = Sessions(lambda: 0.0)
    for number in range(10_001):
        sessions.keep(str(number), "near")
    assert sessions.agent_of("0", seconds=60) is None
    assert sessions.agent_of("1", seconds=60) == "near"
