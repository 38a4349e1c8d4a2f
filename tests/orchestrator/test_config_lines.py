"""The line that an error names for a key."""

import pytest

from nearfar.orchestrator.compose.config import parse_config
from nearfar.orchestrator.util.settings import line_of
from nearfar.protocols import ConfigError

TEXT = '''
top = """
[not.a.table]
key = 1
"""

[policy]
mode = "auto"
limits.day.dollars = 1

[[policy.rules]]   # [[policy.rules]]
name = 'a # b'
when = { tags = ["x",
  "y"], battery = { below = 0.2 } }

[[policy.rules]]
name = "second"
[policy.rules.when]
"task_class" = [
  # a comment, with ] and }
  "billing",
]

[other_far."my agent"]
model = "m"
'''


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("top", 2),
        ("policy", 7),
        ("policy mode", 8),
        ("policy limits day dollars", 9),
        ("policy limits day seconds", 9),
        ("policy rules", 11),
        ("policy rules 0", 11),
        ("policy rules 0 name", 12),
        ("policy rules 0 mode", 11),
        ("policy rules 0 when", 13),
        ("policy rules 0 when tags 1", 14),
        ("policy rules 0 when battery below", 14),
        ("policy rules 1", 16),
        ("policy rules 1 when", 18),
        ("policy rules 1 when task_class", 19),
        ("policy rules 1 when task_class 0", 21),
        ("other_far", 24),
        ("other_far my+agent model", 25),
        ("nowhere", 1),
    ],
)
def test_a_key_is_found_in_tables_of_every_form(path: str, line: int) -> None:
    assert line_of(TEXT, [part.replace("+", " ") for part in path.split()]) == line


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ('[[policy.rules]]\nname = "a"\ndeny = "no"\n\n[[policy.rules]]\nname = "b"\nmode = "sometimes"\n', "line 7: policy.rules.1.mode"),
        ('[policy]\nrules = [\n  { name = "a", deny = "no" },\n  { name = "b", mdoe = "auto" },\n]\n', "line 4: policy.rules.1.mdoe"),
        ('[policy]\nmode = "auto"\nlimits.day.dollars = -1\n', "line 3: policy.limits.day.dollars"),
    ],
)
def test_an_error_names_the_line_inside_of_a_table(text: str, where: str) -> None:
    with pytest.raises(ConfigError, match=where.replace(".", r"\.")):
        parse_config(text, "nearfar.toml")
