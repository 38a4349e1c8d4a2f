"""The page on security lists every limit of the wire with its value and reason, as they stand in the code."""

from scripts import configuration_tables


def test_table_is_what_the_code_says() -> None:
    page = configuration_tables.SECURITY.read_text(encoding="utf-8")
    assert configuration_tables.with_limits(page) == page, "run `make reference`"
    assert page.count("\n| `MAX_MESSAGE_BYTES` |") == 1
