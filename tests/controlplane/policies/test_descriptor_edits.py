"""Rules for Envoy: from an edit, a file or the API to the policy of pods, and back."""

from hashlib import sha256
from typing import Any

import pytest

from controlplane.approvals import rules
from controlplane.approvals.proposals import Proposed
from controlplane.audit.models import Entry
from controlplane.change_requests import decide
from controlplane.editing import edits
from controlplane.editing.edits import EntityEdit
from controlplane.editing.plans import (
    PlanErrors,
    apply_plan,
    copy_configuration,
    difference,
    export_plan,
    plan_from_document,
    read_plan,
)
from controlplane.errors import EditConflict, InvalidEdit, NotFound
from controlplane.policies.descriptors import MAX_TEXTS
from controlplane.policies.document import environment_of
from controlplane.policies.models import DescriptorFile
from controlplane.policies.state import read_state
from fuseboard.contract.descriptor_file import read_file
from fuseboard.contract.descriptors import MAX_ALL_BYTES, MAX_DOMAINS
from tests.controlplane.calling import API, problem, send, token_of
from tests.controlplane.published import published_policy
from tests.people import OLGA, create_people

WHY = {"reason": "As in the files of envoyproxy/ratelimit"}
EDGE = """\
# Who limits the edge: team platform.
domain: edge
descriptors:
  - key: tenant
    means: tenant  # every tenant

  - key: cluster
    value: api
    dependency: openai
"""
MESH = "domain: mesh\ndescriptors:\n  - {key: path, rate_limit: {unit: hour, requests_per_unit: 5}}\n"


@pytest.fixture
def edit(production: str, ada: Any) -> dict[str, Any]:
    return {"environment": "production", "actor": ada, "expected_version": None, **WHY}


def apply(text: str, ada: Any, **options: Any) -> int:
    plan = read_plan(text)
    return apply_plan(
        environment="production", plan=plan, expected_revision=None, actor=ada, **WHY, **options
    )


def put(edit: dict[str, Any], domain: str, file: str, **given: Any) -> int:
    return edits.set_descriptors(domain=domain, file=file, **edit | given)


def put_many(edit: dict[str, Any], many: int) -> None:
    domains = {f"d{number}": {"file": f"domain: d{number}\n"} for number in range(many)}
    apply_plan(
        environment="production",
        plan=plan_from_document({"descriptors": domains}),
        expected_revision=None,
        actor=edit["actor"],
        **WHY,
    )


def said(edit: dict[str, Any], domain: str, file: str) -> list[str]:
    with pytest.raises(InvalidEdit) as error:
        put(edit, domain, file)
    [(field, problems)] = error.value.errors.items()
    assert field == "file"
    return problems


def test_the_rules_reach_pods_and_the_text_stays_as_it_was_written(edit: dict[str, Any]) -> None:
    put(edit, "edge", EDGE)
    put(edit, "mesh", MESH)
    assert published_policy().descriptors == (read_file(EDGE).domain, read_file(MESH).domain)
    assert DescriptorFile.objects.get(name="edge").file == EDGE
    entry = Entry.objects.get(action="descriptors.created", target_name="edge")
    digest = sha256(EDGE.encode()).hexdigest()
    # The history of revisions has the text.
    assert entry.after == {"rules": 2, "sha256": digest, "version": 1}
    edits.remove_descriptors(domain="mesh", **edit)
    assert published_policy().descriptors == (read_file(EDGE).domain,)


def test_a_wrong_file_is_refused_with_every_problem_and_its_line(edit: dict[str, Any]) -> None:
    assert said(edit, "edge", "domain: edge\ndescriptors:\n- value: v\n- key: k\n  means: client\n") == [
        "Line 3 of the file: Enter the key.",
        "Line 5 of the file: This must be one of tenant, user, ip, api_key, endpoint.",
    ]
    assert said(edit, "mesh", EDGE.replace("openai", "nobody")) == [
        "Line 2 of the file: its domain is 'edge', not 'mesh'.",
        "Line 7 of the file: there is no dependency 'nobody': create it first.",
    ]
    assert said(edit, "edge", "") == ["The file is empty."]
    assert not DescriptorFile.objects.exists()


def test_of_two_edits_of_a_file_the_second_conflicts(edit: dict[str, Any]) -> None:
    put(edit, "edge", EDGE, expected_version=0)
    put(edit, "edge", f"{EDGE}# one\n", expected_version=1)
    with pytest.raises(EditConflict):
        put(edit, "edge", f"{EDGE}# two\n", expected_version=1)
    with pytest.raises(InvalidEdit, match="A domain with this name already exists"):
        put(edit, "edge", EDGE, expected_version=0)
    with pytest.raises(NotFound, match="There is no domain 'mesh'"):
        edits.remove_descriptors(domain="mesh", **edit)


def test_the_domains_of_an_environment_are_bounded_together(edit: dict[str, Any]) -> None:
    put_many(edit, MAX_DOMAINS)
    assert said(edit, "more", "domain: more\n") == [f"An environment has at most {MAX_DOMAINS} domains."]
    for name in ("d0", "d1", "d2", "d3"):
        put(edit, name, f"domain: {name}\n{'#' * 250_000}")
    [problem] = said(edit, "d4", f"domain: d4\n{'#' * 250_000}")
    assert f"{MAX_TEXTS:,} are allowed" in problem


def test_the_rules_of_all_domains_are_bounded_together(edit: dict[str, Any]) -> None:
    keys = [f"- {{key: {'k' * 450}{number}, rate_limit: {{unlimited: true}}}}" for number in range(120)]
    texts = {f"d{number}": "\n".join([f"domain: d{number}", "descriptors:", *keys]) for number in range(5)}
    for name in ("d0", "d1", "d2", "d3"):
        put(edit, name, texts[name])
    [problem] = said(edit, "d4", texts["d4"])
    assert f"{MAX_ALL_BYTES:,} are allowed" in problem


def test_a_dependency_that_a_rule_names_is_not_removed(edit: dict[str, Any]) -> None:
    put(edit, "edge", EDGE)
    gone = {"environment": "production", "actor": edit["actor"], **WHY}
    with pytest.raises(InvalidEdit, match="A rule of domain edge still names it"):
        edits.remove_entity(kind="dependency", name="openai", **gone)
    with pytest.raises(PlanErrors, match="A rule of domain edge still names it"):
        apply("dependencies: {}", edit["actor"], prune=True)
    edits.remove_descriptors(domain="edge", **edit)
    edits.remove_entity(kind="dependency", name="openai", **gone)


@pytest.mark.parametrize(
    "text",
    [
        EDGE,
        f"{EDGE}\n\n",
        EDGE.rstrip(),
        f"\n  \n{EDGE}  \n",
        f"  # Begins with blanks.\n{EDGE}",
        f"{EDGE}# caf\u00e9 \u2013 \U0001f680\n",
        f"{EDGE}#\tA tab, and a \u00a0.\n",
        "domain: edge\r\ndescriptors: []\r\n",
        "domain: edge\n",
    ],
)
def test_an_exported_file_has_the_same_text_and_changes_nothing(edit: dict[str, Any], text: str) -> None:
    put(edit, "edge", text)
    state = read_state("production")
    exported = "".join(export_plan("production"))
    assert not difference("production", read_plan(exported), prune=True)
    apply("descriptors: {}", edit["actor"], prune=True)
    assert ("descriptors", "edge") not in read_state("production")
    apply(exported, edit["actor"], prune=True)
    assert read_state("production") == state
    assert state["descriptors", "edge"] == {"file": text}


def test_an_exported_text_is_readable(edit: dict[str, Any]) -> None:
    put(edit, "edge", EDGE)
    exported = "".join(export_plan("production"))
    assert "descriptors:\n  edge:\n    file: |2+\n      # Who limits the edge: team platform.\n" in exported


def test_a_plan_shows_the_lines_that_change(edit: dict[str, Any]) -> None:
    put(edit, "edge", EDGE)

    def shown(text: str) -> list[str]:
        plan = plan_from_document({"descriptors": {"edge": {"file": text}}})
        return difference("production", plan).to_text().splitlines()[1:]

    assert shown(EDGE.replace("value: api", "value: web")) == [
        "~ descriptors edge",
        "    @@ -7,3 +7,3 @@",
        "       - key: cluster",
        "    -    value: api",
        "    +    value: web",
        "         dependency: openai",
    ]
    assert shown(EDGE + "#\n" * 3_000)[1:] == ["    9 lines -> 3,009 lines"]
    assert shown(EDGE + "#\n" * 500)[-1] == "    ... and 302 more lines"


def test_a_plan_names_the_domain_and_the_line_in_its_file(edit: dict[str, Any]) -> None:
    plan = "tiers: {}\ndescriptors:\n  edge:\n    file: |\n      domain: edge\n      descriptors: 5\n"
    with pytest.raises(PlanErrors) as error:
        apply(plan, edit["actor"])
    assert [str(one) for one in error.value.found] == [
        "line 3: descriptors.edge.file: Line 2 of the file: This must be a list: begin each item with -."
    ]
    with pytest.raises(PlanErrors, match="only file"):
        read_plan("descriptors: {edge: {text: a}}")
    with pytest.raises(PlanErrors, match="Enter a text"):
        read_plan("descriptors: {edge: {file: 5}}")


@pytest.mark.parametrize("domain", ["edge", "default/gateway-1/http"])
def test_a_copy_a_revert_and_a_rollback_take_the_rules_along(edit: dict[str, Any], domain: str) -> None:
    ada = edit["actor"]
    file = EDGE.replace("domain: edge", f"domain: {domain}")
    number = put(edit, domain, file)
    edits.create_environment(environment="staging", actor=ada, **WHY)
    apply_plan(
        environment="staging",
        plan=read_plan("dependencies: {openai: {kind: external}}"),
        expected_revision=None,
        actor=ada,
        **WHY,
    )
    copy_configuration(source="production", environment="staging", actor=ada, **WHY)
    assert published_policy("staging").descriptors == published_policy().descriptors != ()
    changed = put(edit, domain, MESH.replace("mesh", domain))
    common: dict[str, Any] = {"environment": "production", "actor": ada, "expected_revision": None, **WHY}
    edits.revert(number=changed, **common)
    assert read_state("production")["descriptors", domain] == {"file": file}
    edits.rollback(to_revision=number - 1, **common)
    assert published_policy().descriptors == ()


def test_two_requests_cannot_add_more_domains_than_allowed(edit: dict[str, Any]) -> None:
    create_people("ada", "olga")
    put_many(edit, MAX_DOMAINS - 1)
    rules.set_approvals(environment="production", needed=1, actor=edit["actor"], **WHY)
    waiting = []
    for name in ("one", "two"):
        with pytest.raises(Proposed) as proposed:
            put(edit, name, f"domain: {name}\n")
        row = proposed.value.request
        decide.approve(environment="production", request=row.pk, expected_version=row.version, actor=OLGA)
        waiting.append(row.pk)
    decide.apply(environment="production", request=waiting[0], actor=edit["actor"])
    with pytest.raises(InvalidEdit, match="at most 20 domains"):
        decide.apply(environment="production", request=waiting[1], actor=edit["actor"])


def test_a_scheduled_edit_has_the_text_and_is_checked_at_once(edit: dict[str, Any]) -> None:
    given: dict[str, Any] = {"creates": True, "typed": {"file": EDGE}}
    document = edits.check_scheduled(EntityEdit("production", "descriptors", "edge", **given))
    assert document == {"descriptors": {"edge": {"file": EDGE}}}
    assert difference("production", plan_from_document(document)).counts["created"] == 1
    with pytest.raises(InvalidEdit, match="its domain is 'edge'"):
        edits.check_scheduled(EntityEdit("production", "descriptors", "mesh", **given))


@pytest.mark.parametrize("domain", ["edge", "default/gateway-1/http"])
def test_the_api_reads_sets_and_deletes_rules(production: str, domain: str) -> None:
    viewer, operator, admin = map(token_of, ("viewer", "operator", "admin"))
    where = f"{API}/descriptors/{domain}"
    file = EDGE.replace("domain: edge", f"domain: {domain}")
    body = {"file": file, "expected_version": 0, **WHY}
    assert send(operator, "PUT", where, body).status_code == 403
    assert send(admin, "PUT", where, body).status_code == 200
    listed = send(viewer, "GET", f"{API}/descriptors").json()
    assert listed == [{"domain": domain, "rules": 2, "version": 1}]
    answer = send(viewer, "GET", where)
    assert (answer.json()["file"], answer.headers["ETag"]) == (file, '"1"')
    wrong = send(admin, "PUT", where, {"file": "5", "expected_version": 1, **WHY})
    assert "must be a mapping" in str(problem(wrong, 422))
    query = f"?expected_version=1&reason={WHY['reason'].replace(' ', '%20')}"
    assert send(admin, "DELETE", f"{where}{query}").status_code == 200
    assert send(viewer, "GET", where).status_code == 404
    assert environment_of("production").descriptor_files.count() == 0
