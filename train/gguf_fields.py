"""What the GGUFs that are made from other GGUFs take over from them."""

from __future__ import annotations

from collections.abc import Mapping

import gguf


def copy_fields(reader: gguf.GGUFReader, writer: gguf.GGUFWriter, changed: Mapping[str, int]) -> None:
    """Give a new file the fields of another, but for those in `changed`."""
    for key, field in reader.fields.items():
        # The writer adds these itself.
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        inner = field.types[-1] if len(field.types) > 1 else None
        writer.add_key_value(key, changed.get(key, field.contents()), field.types[0], inner)
