"""Which tools a plan names."""

import pytest

from nearfar.orchestrator.task.labels import named_tools


@pytest.mark.parametrize(
    ("plan", "tools", "named"),
    [
        ('1. pay(account="DE-1")', ["pay", "send"], {"pay"}),
        ("1. use send_mail, then sendMail", ["send_mail", "sendMail", "mail"], {"send_mail", "sendMail"}),
        ("Pay attention. Delete nothing, and send no mail.", ["pay", "Pay", "Delete", "send"], set()),
        ('Delete(path="x")', ["Delete", "elete"], {"Delete"}),
        ("send_mail_now and re-send_mail", ["send_mail"], set()),
    ],
)
def test_a_plan_names_what_it_calls_and_no_word_that_it_happens_to_use(plan: str, tools: list[str], named: set[str]) -> None:
    assert named_tools(plan, tools) == named
