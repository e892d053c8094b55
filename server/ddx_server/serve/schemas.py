"""JSON schemas as short as they can be said: a model pays for every byte of them before it asks anything.

What objects inside hold is told in words where a model has to write it, and left out where it reads it.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

_KEPT = ("type", "description", "enum", "minimum", "maximum", "items", "format")

_OUT_OF_REACH = 1000
"""A limit that nobody comes near by chance, as this one or below nothing, is enforced, but not told."""


def arguments_schema(schema: Schema) -> Schema:
    """The schema of a tool's arguments: without titles, with "or null" left out, objects inside in words."""
    fields = {name: _argument(field, schema) for name, field in schema["properties"].items()}
    required = {"required": schema["required"]} if "required" in schema else {}
    return {"type": "object", "properties": fields, **required}


def reply_schema(schema: Schema) -> Schema:
    """The fields of a reply by their types alone; which are always there, a model sees when it reads one."""
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
    """What a field refers to, or what it is when it is not null."""
    options = [option for option in field.get("anyOf", []) if option != {"type": "null"}]
    if len(options) == 1:
        return {**{key: value for key, value in field.items() if key != "anyOf"}, **_resolved(options[0], schema)}
    if "$ref" in field:
        definition: Schema = schema["$defs"][field["$ref"].rpartition("/")[2]]
        return definition
    return field


def _in_words(field: Schema, schema: Schema) -> str:
    """The fields of an object, or of the objects of a list, with the values that a choice has; else nothing."""
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
