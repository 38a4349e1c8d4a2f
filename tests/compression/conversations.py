"""Conversations for the tests of the compressor, made by hypothesis."""

from hypothesis import strategies as st

from nearfar.protocols import Message, ToolCall, ToolResult

WORDS = st.sampled_from(
    ["Berlin", "order", "W4923227", "cost", "42.50", "Anna", "the", "of", "cancelled", "mia_li_3668", "yes", "2024-05-20", "日本語", "ä"]
)
SENTENCES = st.lists(WORDS, min_size=1, max_size=30).map(lambda words: " ".join(words) + ". ")
TEXTS = st.lists(SENTENCES, max_size=6).map("".join)
RECORDS = st.lists(st.dictionaries(st.sampled_from(["id", "name", "price"]), WORDS, min_size=1), max_size=30).map(
    lambda records: str(records).replace("'", '"')
)


@st.composite
def exchanges(draw: st.DrawFn) -> list[Message]:
    """Calls and their results."""
    count = draw(st.integers(1, 3))
    first = draw(st.integers(0, 10**9))
    calls = tuple(ToolCall(id=f"call-{first}-{number}", name="look_up", arguments={"name": draw(WORDS)}) for number in range(count))
    results = [ToolResult(call_id=call.id, name=call.name, content=draw(RECORDS | TEXTS)) for call in calls]
    return [Message.assistant(draw(TEXTS), calls), *map(Message.tool, results)]


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    """A user and an assistant by turns, tools between, and the user's last words at any place near the end."""
    messages = [Message.system(draw(TEXTS))] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(0, 6))):
        messages.append(Message.user(draw(TEXTS)))
        for exchange in draw(st.lists(exchanges(), max_size=2)):
            messages += exchange
        messages.append(Message.assistant(draw(TEXTS)))
    messages.append(Message.user(draw(SENTENCES)))
    for exchange in draw(st.lists(exchanges(), max_size=3)):
        messages += exchange
    return messages
