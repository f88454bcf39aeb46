"""The OpenAPI document without its prose, and what has changed in it that a client would notice."""

import json
from collections.abc import Iterator
from typing import Any

#: For people, or for the page that shows the document.
_PROSE = {"title", "description", "summary", "example", "examples", "tags", "deprecated", "ge", "le"}
#: What was allowed must stay allowed: a larger value allows more, or a smaller one.
_BOUNDS = {
    **dict.fromkeys(("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"), 1),
    **dict.fromkeys(("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"), -1),
}
_SAME = ("type", "format", "$ref", "const", "pattern", "default")
_BELOW = ("items", "additionalProperties", "propertyNames", "not")
_NAMED = ("properties", "patternProperties")
_UNIONS = ("anyOf", "oneOf", "allOf")


def compact(document: Any) -> dict[str, Any]:
    """``operations`` by method and path, ``schemas`` by name; see ``v0.1.0/openapi.json``."""
    document = json.loads(json.dumps(document))
    operations = {
        f"{method.upper()} {path}": _operation(operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }
    schemas = {name: _schema(schema) for name, schema in document["components"]["schemas"].items()}
    return {"operations": operations, "schemas": schemas}


def _operation(operation: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"id": operation["operationId"]}
    found["parameters"] = {
        f"{each['in']} {each['name']}": _schema(each["schema"])
        | ({"required": True} if each.get("required") else {})
        for each in operation.get("parameters", [])
    }
    if body := operation.get("requestBody"):
        found["body"] = {"required": body.get("required", False), **_content(body)}
    found["answers"] = {
        status: _content(answer) | ({"headers": sorted(answer["headers"])} if "headers" in answer else {})
        for status, answer in operation["responses"].items()
    }
    return found


def _content(holder: dict[str, Any]) -> dict[str, Any]:
    return {kind: _schema(found.get("schema", {})) for kind, found in holder.get("content", {}).items()}


def _schema(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    found: dict[str, Any] = {}
    for name, value in schema.items():
        if name in _NAMED:
            found[name] = {field: _schema(below) for field, below in value.items()}
        elif name in _UNIONS:
            found[name] = [_schema(below) for below in value]
        elif name == "required" and isinstance(value, list):
            found[name] = sorted(value)
        elif name == "$ref":
            found[name] = value.rpartition("/")[2]
        elif name not in _PROSE:
            found[name] = _schema(value)
    return found


def broken(old: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
    """Both as ``compact`` makes them."""
    sent = _sent(new)
    for name, before in old["operations"].items():
        if name in new["operations"]:
            yield from _broken_operation(before, new["operations"][name], name)
        else:
            yield f"  {name} is missing"
    for name, before in old["schemas"].items():
        if name in new["schemas"]:
            yield from _broken_schema(before, new["schemas"][name], name, sent=name in sent)
        else:
            yield f"  schema {name} is missing: clients are generated with this name"


def _broken_operation(old: dict[str, Any], new: dict[str, Any], where: str) -> Iterator[str]:
    if old["id"] != new["id"]:
        yield f"  {where}: operationId was {old['id']}, is {new['id']}: clients call it by this name"
    for name, before in old["parameters"].items():
        if name not in new["parameters"]:
            yield f"  {where}: {name} is missing"
        else:
            now = new["parameters"][name]
            if before.get("required") != now.get("required"):
                yield f"  {where}: required of {name} was {before.get('required')}, is {now.get('required')}"
            yield from _broken_schema(before, now, f"{where}: {name}", sent=True)
    yield from (
        f"  {where}: {name} is new and required"
        for name, now in new["parameters"].items()
        if name not in old["parameters"] and now.get("required")
    )
    yield from _broken_content(old.get("body", {}), new.get("body", {}), f"{where}: body", sent=True)
    for status, before in old["answers"].items():
        if status not in new["answers"]:
            yield f"  {where}: answer {status} is missing"
            continue
        now = new["answers"][status]
        lost = set(before.get("headers", ())) - set(now.get("headers", ()))
        yield from (f"  {where}: {status} has no header {name}" for name in sorted(lost))
        yield from _broken_content(before, now, f"{where}: {status}", sent=False)


def _broken_content(old: dict[str, Any], new: dict[str, Any], where: str, *, sent: bool) -> Iterator[str]:
    if old.get("required") != new.get("required"):
        yield f"  {where}: required was {old.get('required')}, is {new.get('required')}"
    for kind in old.keys() - {"required", "headers"}:
        if kind not in new:
            yield f"  {where}: {kind} is missing"
        else:
            yield from _broken_schema(old[kind], new[kind], f"{where} {kind}", sent=sent)


def _broken_schema(old: Any, new: Any, where: str, *, sent: bool) -> Iterator[str]:
    """``sent``: by clients, which know of no new field that is required."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        if old != new:
            yield f"  {where}: was {old!r}, is {new!r}"
        return
    for word in _SAME:
        if old.get(word) != new.get(word):
            yield f"  {where}: {word} was {old.get(word)!r}, is {new.get(word)!r}"
    for word, sign in _BOUNDS.items():
        if word in new and (word not in old or sign * new[word] < sign * old[word]):
            yield f"  {where}: {word} was {old.get(word)!r}, is {new[word]!r}"
    if "enum" in new:
        if "enum" not in old:
            yield f"  {where}: only some values are allowed now"
        yield from (
            f"  {where}: {value!r} is missing" for value in old.get("enum", []) if value not in new["enum"]
        )
    yield from _broken_fields(old, new, where, sent=sent)
    for word in _BELOW:
        if word in old:
            yield from _broken_schema(old[word], new.get(word), f"{where}.{word}", sent=sent)
    for word in _UNIONS:
        for before in old.get(word, []):
            if all(list(_broken_schema(before, now, "", sent=sent)) for now in new.get(word, [])):
                yield f"  {where}: {word} has no {json.dumps(before)}"


def _broken_fields(old: dict[str, Any], new: dict[str, Any], where: str, *, sent: bool) -> Iterator[str]:
    needed, now_needed = (
        set(each.get("required") or ()) if _is_object(each) else set() for each in (old, new)
    )
    for named in _NAMED:
        for name, before in old.get(named, {}).items():
            if name not in new.get(named, {}):
                yield f"  {where}: field {name} is missing"
                continue
            if (name in needed) != (name in now_needed):
                yield f"  {where}: field {name} {'was' if name in needed else 'is'} required"
            yield from _broken_schema(before, new[named][name], f"{where}.{name}", sent=sent)
    if sent:
        added = now_needed - old.get("properties", {}).keys()
        yield from (f"  {where}: field {name} is new and required" for name in sorted(added))


def _is_object(schema: dict[str, Any]) -> bool:
    return isinstance(schema.get("required"), list)


def _sent(document: dict[str, Any]) -> set[str]:
    """Schemas that clients send, by name."""
    found: set[str] = set()
    ahead = [each.get("body", {}) for each in document["operations"].values()]
    while ahead:
        value = ahead.pop()
        if isinstance(value, dict):
            name = str(value.get("$ref", ""))
            if name and name not in found:
                found.add(name)
                ahead.append(document["schemas"][name])
            ahead.extend(value.values())
        elif isinstance(value, list):
            ahead.extend(value)
    return found
