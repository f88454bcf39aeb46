"""The page Envoy: the rules of a domain are shown in words, edited as text, exported, and tried."""

import time
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.utils.html import escape
from fleet_rows import put_asked, put_new_servers, put_server

from controlplane.editing import edits
from controlplane.fleet.descriptor_figures import MAX_SHOWN, answering_pods, asked_lately
from controlplane.policies.models import DescriptorFile
from fuseboard.contract.descriptor_file import MAX_FILE
from fuseboard.contract.descriptor_tallies import MAX_DOMAIN, shortened
from fuseboard.contract.descriptors import MAX_RULES
from tests.dashboard.editor_steps import page
from tests.dashboard.shown import text_of
from tests.people import ADA, BOB

pytestmark = pytest.mark.django_db(transaction=True)

WHY = {"reason": "CHG-4822 rules of the edge"}
WHERE, EDIT, EXPORT = "/envoy/of/edge", "/envoy/edit/edge", "/envoy/file/edge"
POOL = "  - {key: pool, value: payments, dependency: payments-api}\n"
FILE = f"""\
# Rules of the edge.
domain: edge
descriptors:
  - key: tenant
    means: tenant
    descriptors:
      - {{key: remote_address, means: ip}}
{POOL}  - key: path
    value: /slow
    rate_limit: {{unit: hour, requests_per_unit: 10}}
"""
TOO_MANY = "".join(f"  - {{key: k{number}, means: ip}}\n" for number in range(MAX_RULES + 1))


def put(file: str = FILE, domain: str = "edge") -> None:
    common: dict[str, Any] = {"environment": "production", "actor": ADA, **WHY}
    edits.set_descriptors(domain=domain, file=file, expected_version=None, **common)


def text(answer: Any, status: int = 200) -> str:
    return text_of(page(answer, status).replace("<wbr>", ""))


def row() -> DescriptorFile:
    return DescriptorFile.objects.get(name="edge")


def save(client: Any, file: str, status: int = 302, **more: str) -> Any:
    answer = client.post(EDIT, {"act": "save", "file": file, "version": str(row().version), **WHY, **more})
    assert answer.status_code == status
    return answer


def test_a_domain_is_added_changed_exported_and_removed(log_in: Any) -> None:
    client = log_in("ada")
    assert "No domains yet" in text(client.get("/envoy"))
    answer = client.post("/envoy/new", {"act": "save", "file": FILE.replace("\n", "\r\n"), **WHY})
    assert answer["Location"].startswith(f"{WHERE}?saved=")
    assert row().file == FILE
    shown = text(client.get(answer["Location"]))
    assert "Undo" in shown
    assert "tenant > remote_address" in shown
    assert "10 per hour, in calendar hours of UTC" in shown
    assert "4 rules, version 1." in shown
    assert "by ada" in shown
    listed = text(client.get("/envoy"))
    assert "edge 4" in listed

    export = client.get(EXPORT)
    assert export.content.decode() == FILE
    assert export["Content-Disposition"] == "attachment; filename*=UTF-8''edge.yaml"
    assert text(client.get(EDIT)).count("No rule changes") == 1

    save(client, FILE.replace("10}", "20}"))
    assert row().version == 2
    remove = {"act": "remove", "version": "2", **WHY}
    assert "at least 8 characters" in text(client.post(WHERE, remove | {"reason": ""}), 422)
    assert client.post(WHERE, remove)["Location"].startswith("/envoy?saved=")
    assert client.get(WHERE).status_code == 404


def test_an_edit_is_undone_on_the_next_page(log_in: Any) -> None:
    put()
    client = log_in("ada")
    answer = save(client, FILE.replace("10}", "20}"))
    number = answer["Location"].rpartition("=")[2]
    shown = text(client.get(f"/revisions/{number}"))
    assert "path=/slow 10 per hour, in calendar hours of UTC 20 per hour" in shown
    assert client.post(f"/revisions/{number}/undo").status_code == 302
    assert row().file == FILE


def test_the_same_text_is_no_edit(log_in: Any) -> None:
    put()
    client = log_in("ada")
    assert "at least 8 characters" in text(save(client, FILE, 422, reason=""), 422)
    answer = save(client, FILE.replace("\n", "\r\n"))
    assert answer["Location"] == WHERE
    assert "Nothing has changed." in text(client.get(WHERE))
    assert row().version == 1


def test_a_domain_of_envoy_gateway_has_slashes_in_its_addresses(log_in: Any) -> None:
    name = "default/gateway-1/edit"
    file = FILE.replace("domain: edge", f"domain: {name}")
    client = log_in("ada")
    answer = client.post("/envoy/new", {"act": "save", "file": file, **WHY})
    assert answer["Location"].startswith(f"/envoy/of/{name}?saved=")
    put_asked(name, {"path=/slow": [10, 0, 4]})
    assert f"Envoy / {name}" in text(client.get(f"/envoy/of/{name}"))
    assert f"{name} 4 10 0 0" in text(client.get("/envoy"))
    assert f'href="/envoy/edit/{name}"' in page(client.get(f"/envoy/of/{name}"))
    assert client.get(f"/envoy/file/{name}")["Content-Disposition"].endswith("default-gateway-1-edit.yaml")
    changed = {"act": "save", "file": file.replace("10}", "20}"), "version": "1", **WHY}
    assert client.post(f"/envoy/edit/{name}", changed).status_code == 302
    assert f"/envoy/of/{name}" in page(client.get("/audit")).replace("<wbr>", "")
    assert client.post(f"/envoy/of/{name}", {"act": "remove", "version": "2", **WHY}).status_code == 302
    assert not DescriptorFile.objects.exists()


def test_a_long_domain_has_its_figures(log_in: Any) -> None:
    name = f"{'n' * 60}/{'g' * 60}/http"
    put(FILE.replace("domain: edge", f"domain: {name}"), name)
    put_asked(shortened(name, MAX_DOMAIN), {"path=/slow": [10, 0, 4]})
    client = log_in("vera")
    assert "10 per hour, in calendar hours of UTC 10 0 4" in text(client.get(f"/envoy/of/{name}"))
    assert "Domains without rules" not in text(client.get("/envoy"))


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_the_form_saves_lines_that_end_with_lf_and_only_if_they_change(log_in: Any, ends: str) -> None:
    put(FILE.replace("\n", ends))
    client = log_in("ada")
    assert save(client, FILE.replace("\n", "\r\n"))["Location"] == WHERE
    assert row().file == FILE.replace("\n", ends)
    save(client, FILE.replace("10}", "20}").replace("\n", "\r\n"))
    assert row().file == FILE.replace("10}", "20}")
    assert page(client.get(EXPORT)) == FILE.replace("10}", "20}")


def test_the_preview_lists_what_changes_and_writes_nothing(log_in: Any) -> None:
    put()
    client = log_in("ada")
    changed = FILE.replace("10}", "20}").replace(
        "  - {key: pool, value: payments, dependency: payments-api}\n", ""
    )
    changed += "  - {key: user, means: user}\n"
    shown = text(client.post("/envoy/preview", {"domain": "edge", "file": changed}))
    assert "Rules: 1 added, 1 changed, 1 removed" in shown
    assert "Changed path=/slow 10 per hour, in calendar hours of UTC 20 per hour" in shown
    assert "Removed pool=payments" in shown
    assert "the value is the user of the caller" in shown
    moved = FILE.replace("# Rules of the edge.", "# Rules of the edge, again.")
    assert "No rule changes" in text(client.post("/envoy/preview", {"domain": "edge", "file": moved}))
    # The button does the same without JavaScript.
    answer = client.post(EDIT, {"act": "preview", "file": changed, "version": "1", "reason": ""})
    assert "Rules: 1 added" in text(answer)
    assert row().file == FILE


def test_the_headers_of_answers_are_shown_and_are_a_change(log_in: Any) -> None:
    put()
    client = log_in("ada")
    assert "RateLimit-Policy" not in text(client.get(WHERE))
    number = save(client, f"headers: on\n{FILE}")["Location"].rpartition("=")[2]
    words = "llowed answers have RateLimit and RateLimit-Policy"
    assert f"A{words}." in text(client.get(WHERE))
    assert f"headers of answers no headers with what is left a{words}" in text(
        client.get(f"/revisions/{number}")
    )


def test_another_order_of_rules_is_a_change(log_in: Any) -> None:
    first, second = (f"  - {{key: path, value: '{value}', means: ip}}\n" for value in ("/a*", "/*"))
    put(f"domain: edge\ndescriptors:\n{first}{second}")
    moved = {"domain": "edge", "file": f"domain: edge\ndescriptors:\n{second}{first}"}
    assert "The order of rules changes" in text(log_in("ada").post("/envoy/preview", moved))


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("", ["The file is empty."]),
        ("domain: [", ["Line 2", "This is not valid YAML"]),
        ("domain: edge\ndescriptors:\n  - {kex: a}\n  - {key: b, means: nobody}\n",
         ["Line 3", "There is no word 'kex' here", "Line 4", "This must be one of tenant"]),
        ("domain: edge\ndescriptors:\n  - {key: a, dependency: no-such}\n",
         ["Line 3", "there is no dependency 'no-such'"]),
        ("domain: other\n", ["its domain is 'other', not 'edge'"]),
        ("domain: edge\n# " + "x" * MAX_FILE, [f"The file is larger than {MAX_FILE // 1024} KiB."]),
        (f"domain: edge\ndescriptors:\n{TOO_MANY}", ["The domain has 1,001 rules. 1,000 are allowed."]),
    ],
    ids=["empty", "no YAML", "wrong words", "unknown dependency", "other domain", "300 KB", "1,001 rules"],
)  # fmt: skip
def test_a_wrong_file_is_refused_with_each_line_and_kept(log_in: Any, file: str, words: list[str]) -> None:
    put()
    client = log_in("ada")
    found = page(save(client, file, 422), 422).replace("<wbr>", "")
    previewed = page(client.post("/envoy/preview", {"domain": "edge", "file": file})).replace("<wbr>", "")
    for word in words:
        assert escape(word) in found, word
        assert escape(word) in previewed, word
    assert escape(file) in found
    assert "Nothing was saved" in found
    # Without a reason too, the file is marked.
    assert "Nothing was saved" in page(save(client, file, 422, reason=""), 422)
    assert row().file == FILE


def test_a_new_domain_needs_a_name_that_is_free(log_in: Any) -> None:
    client = log_in("ada")
    assert "domain: edge" in text(client.get("/envoy/new"))
    put()
    assert "domain: another-domain" in text(client.get("/envoy/new"))
    again = {"act": "save", "file": FILE, **WHY}
    assert "There are rules for the domain edge already" in text(client.post("/envoy/new", again), 422)
    wrong = {"act": "save", "file": "domain: 'two words'\n", "reason": ""}
    shown = text(client.post("/envoy/new", wrong), 422)
    assert "'two words' cannot be the name of a domain" in shown
    assert "at least 8 characters" in shown
    assert list(DescriptorFile.objects.values_list("name", flat=True)) == ["edge"]


def test_a_file_is_loaded_into_the_form_and_saved_only_after_a_look(log_in: Any) -> None:
    put()
    client = log_in("ada")

    def load(content: bytes) -> Any:
        file = SimpleUploadedFile("limits.yaml", content)
        return client.post(EDIT, {"act": "load", "version": "1", "upload": file})

    loaded = page(load(b"\xef\xbb\xbf" + FILE.replace("10}", "11}").replace("\n", "\r\n").encode()))
    assert escape(FILE.replace("10}", "11}")) in loaded
    assert "Rules: 1 changed" in text_of(loaded)
    assert 'name="version" value="1"' in loaded
    wrong = page(load(FILE.encode("utf-16")), 422)
    assert "The file is not UTF-8" in text_of(wrong)
    # The text of the rules is still there.
    assert escape(FILE) in wrong
    assert "The file is empty." not in wrong
    assert "larger than 256 KiB" in text(load(b"#" * 300_000), 422)
    assert "Choose a file." in text(client.post(EDIT, {"act": "load", "version": "1"}), 422)
    assert row().file == FILE


def test_the_edit_of_another_person_is_shown_before_it_is_replaced(log_in: Any) -> None:
    put()
    client = log_in("ada")
    common: dict[str, Any] = {"environment": "production", "actor": BOB, **WHY}
    theirs = FILE.replace("10}", "30}")
    edits.set_descriptors(domain="edge", file=theirs, expected_version=1, **common)
    mine = {"act": "save", "file": FILE.replace("10}", "20}"), "version": "1", **WHY}
    found = page(client.post(EDIT, mine), 409)
    assert "bob changed these rules while you were editing" in text_of(found)
    assert "<del>    rate_limit: {unit: hour, requests_per_unit: 30}</del>" in found
    assert row().file == theirs
    # The form has the version of the other person: saving again replaces their text knowingly.
    assert 'name="version" value="2"' in found
    assert client.post(EDIT, mine | {"version": "2"}).status_code == 302
    assert row().version == 3


def test_viewers_see_rules_and_try_descriptors_and_change_nothing(log_in: Any) -> None:
    put()
    client = log_in("vera")
    assert "Only admins can change rules" in text(client.get("/envoy"))
    shown = page(client.get(WHERE))
    assert "Remove domain" not in shown
    assert f'href="{EDIT}"' not in shown
    assert client.get(EXPORT).status_code == 200
    assert "tenant acme-retail" in text(
        client.post(WHERE, {"act": "try", "descriptors": "tenant=acme-retail"})
    )
    for address in (EDIT, "/envoy/new"):
        assert client.get(address).status_code == 403
    for address in (WHERE, EDIT, "/envoy/new", "/envoy/preview"):
        assert client.post(address, {"act": "remove", "file": FILE, "version": "1", **WHY}).status_code == 403
    assert row().file == FILE


def test_a_tried_descriptor_has_its_rule_and_what_is_left(log_in: Any, settings: Any, redis_url: str) -> None:
    settings.REDIS_URL = redis_url
    put()
    client = log_in("vera")

    def tried(descriptors: str, status: int = 200) -> str:
        return text(client.post(WHERE, {"act": "try", "descriptors": descriptors}), status)

    shown = tried('tenant=acme-retail remote_address=192.0.2.1\npath=/slow\npath="/other one"\npool=payments')
    assert "tenant acme-retail, ip 192.0.2.1" in shown
    assert "path=/slow" in shown
    assert "10 of 10 calls" in shown
    assert "no rule decides: it is allowed, and not counted" in shown
    assert "a call to the dependency payments-api" in shown
    assert "Breaker: Closed" in shown
    assert "Enter a descriptor" in tried(" \n ", 422)
    assert "Line 2: an entry is a key and a value" in tried("a=b\nnothing", 422)
    assert "Line 1: close the quotation mark." in tried("a='b", 422)
    assert "at most 50 descriptors" in tried("a=b\n" * 51, 422)
    settings.REDIS_URL = "redis://127.0.0.1:1"
    assert "not known: Redis does not answer" in tried("path=/slow")


def test_what_callers_typed_is_escaped(log_in: Any) -> None:
    put("domain: edge\ndescriptors:\n  - {key: '<b>', rate_limit: {unlimited: true}}\n")
    client = log_in("ada")
    assert "<b>" not in page(client.get(WHERE)).partition("<main")[2].replace('<b class="', "")
    tried = page(client.post(WHERE, {"act": "try", "descriptors": "'<script>=1'"}))
    assert "&lt;script&gt;=1" in tried


def test_an_unknown_domain_has_no_page(log_in: Any) -> None:
    client = log_in("ada")
    for answer in (
        client.get(WHERE),
        client.get(EDIT),
        client.get(EXPORT),
        client.post(WHERE, {"act": "try", "descriptors": "a=b"}),
        client.post(WHERE, {"act": "remove"}),
    ):
        assert answer.status_code == 404


def test_what_envoy_asked_for_is_beside_each_rule(log_in: Any) -> None:
    put()
    unmatched = ["path > user_agent", 7, ["/v1/{id} > curl"]]
    put_asked("edge", {"tenant > remote_address": [1_200, 30, 0], "path=/slow": [10, 0, 4]}, unmatched)
    put_asked("edge", {"tenant > remote_address": [34, 1, 0], "gone": [9, 9, 0]}, gateway="g2")
    put_asked("egde", {}, ["tenant", 3, ["<b>"]])
    client = log_in("vera")
    shown = text(client.get(WHERE))
    assert "limits that count by it decide, and the quotas of a tenant above it 1,234 31 0 7" in shown
    assert "10 per hour, in calendar hours of UTC 10 0 4 9" in shown
    assert "tenant decide 0 0 0 4" in shown
    assert "7 descriptors, allowed, and counted by no limit" in shown
    assert "path > user_agent /v1/{id} > curl 7" in shown
    listed = text(client.get("/envoy"))
    assert "edge 4 1,260 40 7" in listed
    assert "Domains without rules" in listed
    assert "egde tenant <b> 3" in listed


def test_a_domain_that_nobody_asked_for_says_so(log_in: Any) -> None:
    put()
    client = log_in("vera")
    assert "Envoy sent no descriptor without a rule." in text(client.get(WHERE))
    listed = text(client.get("/envoy"))
    assert "edge 4 0 0 0" in listed
    assert "Domains without rules" not in listed


def test_the_pods_that_answered_envoy_are_listed_the_busiest_first(log_in: Any) -> None:
    put()
    put_server("edge-1", service="edge", revision=2**40)
    put_server("edge-2", service="edge", revision=0, state="offline")
    put_server("left-1", service="edge", state="gone")
    put_server("web-1")
    put_asked("edge", {"tenant": [10, 0, 0]}, pods={"edge-1": 10, "forgotten-1": 3, "left-1": 2_000})
    put_asked("edge", {"tenant": [15, 0, 0]}, gateway="g2", pods={"edge-2": 15})
    put_asked("egde", {}, ["tenant", 7, []], gateway="g3", pods={"edge-1": 1_200})
    put_asked("edge", {"tenant": [1, 0, 0]}, gateway="older")
    listed = text(log_in("vera").get("/envoy")).partition("Pods that answer Envoy")[2]
    assert listed.startswith(" 2 since ")
    assert f"edge-1 edge Online 1,210 {2**40}" in listed
    assert "edge-2 edge Offline 15 0" in listed
    assert listed.index("edge-1") < listed.index("edge-2")
    assert "web-1" not in listed
    assert "forgotten-1" not in listed
    assert "left-1" not in listed


def test_without_a_pod_that_answered_the_page_says_where_to_look(log_in: Any) -> None:
    put()
    put_server("web-1")
    shown = text(log_in("vera").get("/envoy")).partition("Pods that answer Envoy")[2]
    assert shown.startswith(" none since ")
    assert "Envoy reaches no pod" in shown
    assert "fuseboard envoy-config" in shown


def test_the_number_of_pods_is_bounded_and_one_query_reads_them(
    log_in: Any, django_assert_num_queries: Any
) -> None:
    names = [f"edge-{number}" for number in range(MAX_SHOWN + 20)]
    put_new_servers(names)
    put_asked("edge", {}, pods={name: number + 1 for number, name in enumerate(names)})
    asked = asked_lately("production", time.time())
    with django_assert_num_queries(1):
        found = answering_pods("production", asked)
    assert [one.name for one in found] == names[: -MAX_SHOWN - 1 : -1]
    shown = text(log_in("vera").get("/envoy"))
    assert "the busiest 50 since" in shown
    assert "And at least 20 more. Each pod answered at least as many" in shown


def test_no_more_pods_than_the_page_lists_are_no_others(log_in: Any) -> None:
    names = [f"edge-{number}" for number in range(MAX_SHOWN)]
    put_new_servers(names)
    put_asked("edge", {}, pods=dict.fromkeys(names, 1))
    shown = text(log_in("vera").get("/envoy")).partition("Pods that answer Envoy")[2]
    assert shown.startswith(" 50 since ")
    assert "more" not in shown


def test_the_palette_finds_a_domain(log_in: Any) -> None:
    put()
    entries = {entry["id"]: entry for entry in log_in("vera").get("/palette").json()["entries"]}
    assert entries["envoy:edge"]["href"] == WHERE


def test_a_file_that_changed_again_stays_and_its_rules_are_listed(log_in: Any) -> None:
    put()
    client = log_in("ada")
    number = save(client, FILE.replace("10}", "20}"))["Location"].rpartition("=")[2]
    save(client, FILE.replace("10}", "30}"))
    shown = text(client.get(f"/revisions/{number}/revert")).partition("What stays")[2]
    assert "path=/slow 30 per hour, in calendar hours of UTC 10 per hour, in calendar hours of UTC" in shown
    # Not the whole files.
    assert "# Rules of the edge." not in shown
