"""Edits of the rules for descriptors of Envoy."""

from hashlib import sha256

from controlplane.audit.actor import Actor
from controlplane.editing.edits.edit_entity import put_edit, remove_entity, save_call
from controlplane.policies.descriptors import rules_in
from controlplane.policies.fields import Fields


def set_descriptors(
    *,
    environment: str,
    domain: str,
    file: str,
    expected_version: int | None,
    reason: str,
    actor: Actor,
) -> int:
    """Add the rules for a domain, on version 0, or replace them.

    ``file`` is the text of the file, which names the same domain. Raises ``InvalidEdit`` with every problem
    of the file and its line.
    """
    edit = put_edit(environment, "descriptors", domain, expected_version, {"file": file})
    return save_call(edit, reason=reason, actor=actor, audited=_audited)


def remove_descriptors(
    *, environment: str, domain: str, expected_version: int | None, reason: str, actor: Actor
) -> int:
    """Remove the rules for a domain. What Envoy asks for it is then allowed, and not counted."""
    return remove_entity(
        environment=environment,
        kind="descriptors",
        name=domain,
        version=expected_version,
        reason=reason,
        actor=actor,
        audited=_audited,
    )


def _audited(fields: Fields) -> Fields:
    """The part of a text that the audit stores: the history of revisions has the text itself."""
    text = fields["file"]
    digest = sha256(text.encode(errors="surrogatepass")).hexdigest()
    return {"rules": rules_in(text), "sha256": digest, "version": fields["version"]}
