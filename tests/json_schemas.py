"""JSON Schemas of any shape."""

from typing import Any

from hypothesis import strategies as st

Schema = dict[str, Any]
_NAMES = st.sampled_from(["a", "b", "a/b", "~", "$ref", "type"])
_LITERALS = st.none() | st.booleans() | st.integers(-2, 2) | st.text("ab", max_size=2)


def plain_schemas() -> st.SearchStrategy[Schema]:
    """Draws schemas that have nothing but what both providers' SDKs rewrite in the same way as we do."""
    leaves = st.sampled_from(["string", "integer", "number", "boolean", "null"]).map(lambda kind: {"type": kind})
    named = st.builds(lambda title, schema: {**schema, "title": title}, st.sampled_from(["T", "U"]), leaves)
    values = st.builds(lambda values: {"enum": values, "type": "string"}, st.lists(st.text("ab", min_size=1), min_size=1, unique=True))
    dated = st.sampled_from(["date-time", "email", "uuid"]).map(lambda form: {"type": "string", "format": form})
    return st.recursive(leaves | named | values | dated, _plain, max_leaves=6)


def _plain(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    objects = st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=3).flatmap(
        lambda properties: st.builds(
            lambda required, closed: (
                {"type": "object", "properties": properties, "required": required} | ({"additionalProperties": False} if closed else {})
            ),
            st.lists(st.sampled_from(sorted(properties)), min_size=1, unique=True),
            st.booleans(),
        )
    )
    return (
        objects
        | st.builds(lambda items: {"type": "array", "items": items}, inner)
        | st.builds(lambda variants: {"anyOf": variants}, st.lists(inner, min_size=1, max_size=3))
    )


def schemas() -> st.SearchStrategy[Schema]:
    """Draws schemas that may have everything, at odd places, too."""
    leaves: st.SearchStrategy[Any] = st.one_of(
        st.sampled_from(["string", "integer", "number", "boolean", "null", "object", "array"]).map(lambda kind: {"type": kind}),
        st.lists(st.sampled_from(["string", "integer", "null"]), min_size=1, unique=True).map(lambda kinds: {"type": kinds}),
        st.lists(_LITERALS, max_size=3).map(lambda values: {"enum": values}),
        _LITERALS.map(lambda value: {"const": value}),
        _NAMES.map(lambda name: {"$ref": f"#/$defs/{name.replace('~', '~0').replace('/', '~1')}"}),
        st.sampled_from([{}, True, False, {"$ref": "#"}, {"$ref": "https://example.com/a"}]),
    )
    return st.builds(_with_definitions, st.recursive(leaves, _any, max_leaves=8), st.dictionaries(_NAMES, leaves, max_size=2)).filter(bool)


def _with_definitions(schema: Any, definitions: Schema) -> Schema:  # noqa: ANN401  # a JSON Schema may be a boolean
    return {**(schema if isinstance(schema, dict) else {"anyOf": [schema]}), **({"$defs": definitions} if definitions else {})}


def _any(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    limits = st.fixed_dictionaries(
        {}, optional={"minItems": st.integers(0, 2), "maxLength": st.integers(0, 2), "minimum": st.integers(-1, 1)}
    )
    shapes = st.one_of(
        st.builds(lambda properties: {"properties": properties}, st.dictionaries(_NAMES, inner, max_size=2)),
        st.builds(lambda items: {"items": items}, inner),
        st.builds(lambda name, parts: {name: parts}, st.sampled_from(["anyOf", "oneOf", "allOf"]), st.lists(inner, min_size=1, max_size=2)),
        st.builds(lambda part: {"additionalProperties": part}, inner),
        st.builds(lambda part: {"not": part}, inner),
        st.builds(lambda names: {"required": names}, st.lists(_NAMES, max_size=2, unique=True)),
    )
    kinds = st.sampled_from([{}, {"type": "object"}, {"type": "array"}, {"type": "string"}, {"type": ["object", "null"]}])
    return st.builds(lambda kind, one, other, limit: {**kind, **one, **other, **limit}, kinds, shapes, shapes, limits)
