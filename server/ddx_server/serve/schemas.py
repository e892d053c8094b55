"""Makes JSON schemas as short as possible: a model pays for every byte of them before it asks anything.

The fields of nested objects are described in words where a model has to write them, and left out where it reads them.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

_KEPT = ("type", "description", "enum", "minimum", "maximum", "items", "format")

_OUT_OF_REACH = 1000
"""Limits of at least this size, which nobody reaches by chance, are enforced but not published."""


def arguments_schema(schema: Schema) -> Schema:
    """Shorten the schema of a tool's arguments: no titles, no "or null", nested objects described in words."""
    fields = {name: _argument(field, schema) for name, field in schema["properties"].items()}
    required = {"required": schema["required"]} if "required" in schema else {}
    return {"type": "object", "properties": fields, **required}


def reply_schema(schema: Schema) -> Schema:
    """Shorten the schema of a reply to the types of its fields; a model sees in a reply which are always present."""
    fields = {
        name: {"type": _resolved(field, schema).get("type", "object")} for name, field in schema["properties"].items()
    }
    return {"type": "object", "properties": fields}


def _argument(field: Schema, schema: Schema) -> Schema:
    resolved = _resolved(field, schema)
    kept = {key: resolved[key] for key in _KEPT if key in resolved}
    if resolved.get("maximum", 0) >= _OUT_OF_REACH:
        del kept["maximum"]
    if resolved.get("minimum") in (0, 1):
        del kept["minimum"]
    if field.get("default") not in (None, "", [], {}, False):
        kept["default"] = field["default"]
    if resolved.get("type") == "array":
        kept["items"] = {"type": _resolved(resolved.get("items", {}), schema).get("type", "object")}
    if words := _in_words(field, schema):
        kept["description"] = words
    elif "description" in field:
        kept["description"] = field["description"]
    else:
        kept.pop("description", None)
    return kept


def _resolved(field: Schema, schema: Schema) -> Schema:
    """The schema that a field refers to, or its non-null alternative."""
    options = [option for option in field.get("anyOf", []) if option != {"type": "null"}]
    if len(options) == 1:
        return {**{key: value for key, value in field.items() if key != "anyOf"}, **_resolved(options[0], schema)}
    if "$ref" in field:
        definition: Schema = schema["$defs"][field["$ref"].rpartition("/")[2]]
        return definition
    return field


def _in_words(field: Schema, schema: Schema) -> str:
    """The fields of an object, or of a list's objects, with the values of enums, in words; "" for anything else."""
    resolved = _resolved(field, schema)
    if resolved.get("type") == "array":
        inner = _in_words(resolved.get("items", {}), schema)
        return f"[{inner}]" if inner else ""
    inside = resolved.get("properties")
    if not inside:
        return ""
    told = []
    for name, one in inside.items():
        choice = "|".join(_resolved(one, schema).get("enum", []))
        told.append(f"{name}: {choice}" if choice else name)
    return f"{{{', '.join(told)}}}"
