"""JSON that an agent was asked for and that may stand in the middle of its words."""

from pydantic import JsonValue

from ...protocols import JsonSchema
from ...protocols.validation import parse_output


def read_json_reply(text: str, schema: JsonSchema) -> JsonValue:
    """Return the JSON object in a reply, valid against `schema`; words and code fences around it are passed over.

    Agents without the `json_schema` capability decorate what they were asked for. Raises `InvalidOutput`, which says what is wrong.
    """
    start, end = text.find("{"), text.rfind("}")
    return parse_output(text[start : end + 1] if 0 <= start < end else text, schema)
