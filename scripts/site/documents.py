"""The reference of the JSON documents, generated from the package's schemas."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any

ABOUT = """\
Every command with `--json` prints one document, an object. Its field `schema` names what it is and
the version, for instance `dippm.predict/1`: the version is raised when a key is renamed, removed or
means something else; new keys may come without. The schemas are
[JSON Schema](https://json-schema.org) in the package, `dippm/schemas.json`, one definition each,
and the whole file holds for any document:

```python
import json
from importlib.resources import files

schemas = json.loads((files("dippm") / "schemas.json").read_text(encoding="utf-8"))
sorted(schemas["$defs"])
```

* What cannot be had is `null`, and the reason stands under its name in `absent` (in tables,
  `reason` or `error`). Nothing is 0 or -1 for want of a value.
* Units are in the names; `mb` is MiB.
* An interval of a document's own quantity stands in `intervals`, by its name: `low`, `high` and
  the `coverage` that it holds with. In flat rows, as of tables, it is `latency_ms_low` and
  `latency_ms_high`.
* `slice`, or `conditions.mig`, is the MIG slice that was asked for; `mig` beside a memory is the
  one that is advised.
* `fits`, `capacity_mb` and `headroom_mb` go by
  [the 99 % bound](../method/memory.md#the-slice-that-holds-it).
* An error is a document too, and the exit code is 1, or 2 for a command line that makes no sense.
* `dippm run` and `dippm track` print their document as one line, after what the command printed.
* `dippm compare --csv` has the keys of a row of `dippm compare` as columns; warnings, and reasons
  of what is absent, are one text each with ` | ` between them.
"""


def pages() -> dict[str, tuple[str, str]]:
    """Return path on the site → (title, Markdown) of the page."""
    schemas = json.loads((files("dippm") / "schemas.json").read_text(encoding="utf-8"))
    parts = ["# JSON documents", ABOUT]
    for name, schema in schemas["$defs"].items():
        told = schema["properties"].get("schema", {})
        names = told["enum"] if "enum" in told else [told["const"]] if told else []
        parts.append(f"## {name}\n\n{schema['title']}{': ' * bool(names)}"
                     + ", ".join(f"`{one}`" for one in names))  # fmt: skip
        rows = "\n".join(f"| {' | '.join(row)} |" for row in _rows(schema))
        parts.append(f"| key | type | what |\n|---|---|---|\n{rows}")
    return {"reference/json.md": ("JSON documents", "\n\n".join(parts) + "\n")}


def _rows(schema: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str, str]]:
    for key, one in schema.get("properties", {}).items():
        path, optional = f"{above}{key}", key not in schema.get("required", ())
        what = one.get("description", "") + " (not always there)" * optional
        yield f"`{path}`", _type(one), what.replace("|", "\\|")
        for inner, ending in _inner(one):
            yield from _rows(inner, f"{path}{ending}.")


def _inner(schema: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], str]]:
    yield schema, ""
    yield from ((one, "") for one in schema.get("anyOf", ()))
    if isinstance(schema.get("items"), dict):
        yield schema["items"], "[]"


def _type(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name})"
    if "anyOf" in schema:
        return " or ".join(_type(one) for one in schema["anyOf"])
    if "const" in schema or "enum" in schema:
        return "string"
    kinds = schema.get("type", "any")
    found = " or ".join(kinds) if isinstance(kinds, list) else str(kinds)
    if isinstance(schema.get("items"), dict) and "$ref" in schema["items"]:
        return f"{found} of {_type(schema['items'])}"
    of_each = schema.get("additionalProperties")
    if isinstance(of_each, dict):
        return f"{found} of {_type(of_each)} by name"
    return found
