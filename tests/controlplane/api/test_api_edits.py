"""What each edit through the API writes into the audit, and the body of each refusal, as clients read them.

``api_edits.json`` has the requests in order, with the answers and the audit entries. After an intended
change, write it again with ``TEST_WRITES_API_EDITS=1``, and review the difference.
"""

import json
import os
from pathlib import Path
from typing import Any

from controlplane.audit.models import Entry
from tests.controlplane.calling import API

GOLDEN = Path(__file__).with_name("api_edits.json")
WRITES = bool(os.environ.get("TEST_WRITES_API_EDITS"))
#: They differ from run to run.
UNSTABLE = ("changed_at", "instance", "request_id")


def test_each_edit_writes_the_same_audit_entry_and_each_refusal_has_the_same_body(call: Any) -> None:
    found = []
    for step in json.loads(GOLDEN.read_text()):
        found.append(done(call, step))
        if not WRITES:
            assert found[-1] == step
    if WRITES:
        GOLDEN.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


def done(call: Any, step: dict[str, Any]) -> dict[str, Any]:
    last = Entry.objects.order_by("-id").values_list("id", flat=True).first() or 0
    method, path = step["request"].split(" ", 1)
    answer = call("admin", method, f"{API}/{path}", step.get("body"))
    found = {name: step[name] for name in ("request", "body") if name in step} | {
        "status": answer.status_code
    }
    if answer.status_code >= 400:
        found["problem"] = {name: value for name, value in answer.json().items() if name not in UNSTABLE}
    entries = Entry.objects.filter(id__gt=last, environment="production").order_by("id")
    return found | {"audit": [recorded(entry) for entry in entries]}


def recorded(entry: Entry) -> dict[str, Any]:
    """Return the entry with the fields that differ. The others are only counted."""
    before, after = entry.before or {}, entry.after or {}
    fields = before.keys() | after.keys()
    changed = {field for field in fields if before.get(field) != after.get(field)}
    return {
        "action": entry.action,
        "target": f"{entry.target_kind} {entry.target_name}",
        "before": {field: before[field] for field in sorted(changed & before.keys())}
        if entry.before
        else None,
        "after": {field: after[field] for field in sorted(changed & after.keys())} if entry.after else None,
        "alike": len(fields - changed),
    }
