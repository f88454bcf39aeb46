"""An erased tenant is in no table but those that docs/refusals.md names."""

from datetime import timedelta
from typing import Any

import pytest
from django.apps import apps
from django.db import connection
from django.utils import timezone

from controlplane.accounts.models import SavedView
from controlplane.accounts.saved_views import LONGEST_NAME, save_view
from controlplane.alerts.incidents.edits import add_note
from controlplane.alerts.models import Marker
from controlplane.alerts.rules.texts import most_are_from
from controlplane.audit.models import Entry
from controlplane.editing import edits
from controlplane.erasure import erase
from controlplane.fleet.models import DescriptorFigures, Figures
from controlplane.ledger.models import UsageDay, UsageHour, Whose
from controlplane.ledger.rows import AMOUNTS
from controlplane.policies.models import Tier
from controlplane.reconciliation.models import AllowedAlone
from controlplane.refusals.models import TopList
from controlplane.refusals.top_lists import REQUESTS_BY_TENANT
from controlplane.series.kinds import RULE, TENANT
from controlplane.series.models import Entity
from controlplane.usage.models import Demand, RuleDemand
from controlplane.weekly.send import send_due
from tests.controlplane.alerts.delivery.test_alert_deliveries import receiver
from tests.controlplane.alerts.test_alert_erasure import incident, resolved
from tests.controlplane.calling import API, send, token_of
from tests.controlplane.erasure.test_erasure import sample
from tests.controlplane.weekly.test_weekly_sending import MORNING, summary
from tests.people import ADA, VERA, create_person

ACME = "acme-4711"
WHY = "ticket PRIV-12"

#: Columns that the erasure of a tenant empties of it.
ERASED = {
    "accounts_savedview": "name query",
    "alerts_alert": (
        "key text detail begun_text begun_detail fired_text worst_text subject_name subject_quota"
    ),
    "alerts_delivery": "document",
    "alerts_incident": "cause title",
    "fleet_descriptorfigures": "document",
    "fleet_figures": "document",
    "ledger_usageday": "tenant",
    "ledger_usagehour": "name",
    "reconciliation_allowedalone": "tenant",
    "refusals_refusalsample": "tenant rule",
    "refusals_toplist": "names",
    "series_entity": "name",
    "usage_demand": "tenant",
    "usage_ruledemand": "tenant",
    "weekly_weeklysummary": "sections",
}
#: Columns that can name a tenant afterwards. docs/refusals.md says why, and until when.
STAYS = {
    # Texts that people wrote.
    "alerts_alert": "note",
    "alerts_incidentline": "text",
    "alerts_marker": "text",
    "alerts_mute": "reason",
    "approvals_approval": "note",
    "breakers_override": "reason ticket",
    "drills_drill": "reason",
    "suggestions_suggestion": "declined_reason",
    # Replies of the API, and files of imports.
    "api_keptreply": "key reply",
    "policies_draft": "filename content errors difference reason",
    # The configuration, its history, and what changes it later.
    "approvals_changerequest": "action target reason title document entries ended_reason",
    "approvals_proposedchange": "name before after",
    "policies_descriptorfile": "file",
    "policies_change": "name before after",
    "policies_revision": "target reason",
    "policies_tenant": "key title parent",
    "policies_environment": "frozen_reason",
    "spending_budget": "tenant",
    "schedules_schedule": "title document reason error",
    "audit_entry": "target_name before after reason",
    # Names that services choose: of models, locks, routes and jobs, and of limits that count callers.
    "ledger_usageday": "model",
    "ledger_usagehour": "model",
    "fleet_server": "load primitives alone",
    "refusals_refusalsample": "endpoint",
    "backlogs_backlog": "document",
    "fleet_failedcalls": "document",
}
#: Columns of any table that hold a word of the product, a name of the configuration or of a person.
NEVER = frozenset(
    """
    environment role origin actor by ended_by closed_by acknowledged_by author owner person persons
    caller state kind severity worst least_severity notified resolved_why runbook hash digest selector
    fingerprint service server boot gateway dependency pod mode zone address browser environment_roles
    service_roles agent_version config_hash config_status config_source config_error mode_cause
    previous_boot breakers token share uncharged seen request_id trace_id action target_kind target positions
    refusals problem last_id figures from_state to_state cause server servers chosen run_id pods
    escalations changes measured counts rule url days begins ends zone steps result subject_kind
    disabled_because needs step reset who domain field counter measure cursors full reason ip user
    api_key trace sub algorithm failure_policy period time_zone per endpoints template own slug tuning
    protection frozen_by alert_rules page title name returns_to body source default_title default_body permits
    fallback_note username first_name last_name email password key value id name_prefix detail points turns
    aliases pool hosts pools account tier at_100 instead_of mark limit evidence declined_by
    """.split()  # noqa: SIM905 - read as a text, not as many strings
)
#: Tables of which a column that is in ``NEVER`` for others was looked at: it holds no tenant here.
LOOKED_AT = frozenset(
    """
    accounts_agenttoken accounts_apitoken accounts_kept accounts_login accounts_ticket accounts_user
    approvals_rule alerts_evaluation alerts_receiver alerts_route audit_chainhead audit_export_export
    breakers_streamposition breakers_transition fleet_event fleet_gatewayorder fleet_redisnode
    ledger_invoice ledger_usagereceipt ledger_usagetotal usage_budgetcorrection usage_knownbudget
    policies_dependency policies_runbook policies_runbookrevision policies_subjectlimit
    policies_template policies_tenantquota policies_tier policies_tierquota policies_vendorlimit
    publishing_ahead publishing_outboxentry reconciliation_copying reconciliation_lostcounts
    refusals_digestkey refusals_refusalservice series_writer shares_piece shares_pool spending_account
    spending_model suggestions_following
    """.split()  # noqa: SIM905
)


def columns_of_text() -> dict[str, set[str]]:
    """Every column of the product that can hold a text, by table."""
    kinds = {"CharField", "TextField", "JSONField", "ArrayField", "BinaryField"}
    return {
        model._meta.db_table: names
        for model in apps.get_models(include_auto_created=True)
        if model.__module__.startswith("controlplane.")
        and (names := {field.column for field in model._meta.fields if field.get_internal_type() in kinds})
    }


def test_every_column_of_text_is_listed() -> None:
    """Whoever adds one finds out here whether an erased tenant is in it."""
    found = columns_of_text()
    assert set(found) == set(ERASED) | set(STAYS) | LOOKED_AT
    for table, names in found.items():
        named = {*ERASED.get(table, "").split(), *STAYS.get(table, "").split()}
        assert named <= names, table
        assert names - named <= NEVER, table


def holding(text: str) -> set[tuple[str, str]]:
    """Tables and columns of the whole database that contain a text."""
    found = set()
    with connection.cursor() as cursor:
        for table in connection.introspection.table_names(cursor):
            cursor.execute(
                f'SELECT DISTINCT c.key FROM "{table}" t, jsonb_each_text(to_jsonb(t)) c'  # noqa: S608
                " WHERE position(%s in lower(c.value)) > 0",
                [text],
            )
            found |= {(table, column) for (column,) in cursor.fetchall()}
    return found


def seed(production: str) -> None:
    """A tenant, in everything that the product stores about one."""
    now = timezone.now()
    Tier.objects.get_or_create(environment_id=production, name="free")
    edits.create_tenant(
        environment=production,
        tenant=ACME,
        tier="free",
        title="Acme",
        reason="They signed a contract",
        actor=ADA,
    )
    tenant = {"title": "Acme", "tier": "free", "reason": "They changed their name"}
    head = send(token_of("admin"), "GET", f"{API}/tenants/{ACME}").json()["version"]
    send(
        token_of("admin"), "PATCH", f"{API}/tenants/{ACME}", tenant,
        **{"Idempotency-Key": "once", "If-Match": f'"{head}"'},
    )  # fmt: skip
    create_person("vera")
    views = {
        "mine": {"tenant": ACME},
        "Words": {"q": f"{ACME} requests"},
        "Rules": {"rule": f"{ACME}/requests"},
    }
    for name, query in {**views, f"All of {ACME.title()}": {"range": "1h"}}.items():
        save_view(environment=production, name=name, page="refusals", query=query, shared=False, actor=VERA)
    receiver(least_level=1, weekly=True)
    closed = incident(f"hot-key:{ACME}/requests", closed=True)
    resolved(f"hot-key:{ACME}/requests", "hot_keys", ACME, subject_quota=f"{ACME}/requests", incident=closed)
    resolved("429", "tenant", ACME, detail="30 of 90/s." + most_are_from(ACME))
    add_note(environment=production, number=closed.pk, text=f"Called {ACME}", actor=ADA)
    Marker.objects.create(environment=production, at=now, text=f"Moved {ACME}", by="ada")
    busiest = [{"tenant": ACME, "requests_per_s": 1.0}, {"tenant": "globex", "requests_per_s": 1.0}]
    document = {"tenants": busiest, "usage": busiest, "rules": [{"tenant": ACME, "rule": "requests"}]}
    Figures.objects.create(gateway="stopped", environment=production, document=document)
    asked = {"rules": {}, "unmatched": [["tenant", 1, [ACME]]], "unmatched_total": 1}
    DescriptorFigures.objects.create(
        gateway="stopped", environment=production, domain="edge", document={"steps": [[1, asked]]}
    )
    AllowedAlone.objects.create(
        environment=production, domain="t:1", field="f", counter="f", value=1, amount=1, tenant=ACME, rule="r"
    )
    TopList.objects.create(
        environment=production,
        kind=REQUESTS_BY_TENANT.number,
        grain_s=3600,
        at=now,
        writer=0,
        names=["globex", ACME],
        counts=[9.0, 4.0],
        total=13.0,
        short_by=0.0,
    )
    sample(tenant=ACME)
    sample(tenant="child", rule=f"{ACME}/requests")
    times = {"first_at": now - timedelta(hours=1), "last_at": now}
    for kind, sub in ((TENANT, ""), (RULE, "requests")):
        Entity.objects.create(environment=production, kind=kind.number, name=ACME, sub=sub, **times)
    span = {"environment": production, "tenant": ACME, "grain_s": 10, "at": now, "asked": 1, "refused": 1}
    Demand.objects.create(**span)
    RuleDemand.objects.create(**span, rule="requests", shadow=0)
    used = dict.fromkeys(AMOUNTS, 1) | {"environment": production, "model": "m", "dependency": "llm"}
    UsageHour.objects.create(at=now, whose=Whose.TENANT, name=ACME, **used)
    UsageDay.objects.create(day=now.date(), tenant=ACME, **used)
    summary(ACME, "globex")
    send_due(MORNING)


def listed(columns: dict[str, str]) -> set[tuple[str, str]]:
    return {(table, name) for table, names in columns.items() for name in names.split()}


@pytest.mark.django_db(transaction=True)
def test_no_table_but_those_that_the_page_names_holds_an_erased_tenant(production: str) -> None:
    """Saved views had it, and the last figures of a gateway that stopped."""
    seed(production)
    before = holding(ACME)
    assert {table for table, _ in before} >= set(ERASED), "each of them is seeded"
    erased = erase(environment=production, kind="tenant", value=ACME, reason=WHY, actor=ADA)
    assert erased.views == 4
    assert "4 saved views" in erased.words
    assert "1 top list" in erased.words
    top = TopList.objects.get()
    assert (top.names, top.counts, top.total) == (["globex"], [9.0], 13.0)
    left = holding(ACME)
    assert left & listed(ERASED) == set()
    assert left <= listed(STAYS), "docs/refusals.md lists these"
    assert Figures.objects.get().document["tenants"] == [{"tenant": "globex", "requests_per_s": 1.0}]
    assert ACME not in str(Entry.objects.latest("pk").after)


@pytest.mark.django_db(transaction=True)
def test_views_of_other_tenants_and_of_words_of_the_product_stay(production: str) -> None:
    create_person("vera")
    kept: dict[str, dict[str, Any]] = {
        "another": {"tenant": "acme-47110"},
        "a tenant of it": {"tenant": f"{ACME}-2"},
        "a tenant in capitals": {"tenant": ACME.upper()},
        "a rule of another": {"rule": f"{ACME}-2/requests"},
        "words of another": {"q": f"my-{ACME} {ACME}-2 {ACME}.com"},
        f"{ACME}-2 and {ACME}.com": {"tenant": "globex"},
        "a state of this name": {"range": "open"},
        "a reason of this name": {"reason": "open"},
        "openings": {"q": "reopened"},
    }
    for name, query in kept.items():
        save_view(environment=production, name=name, page="refusals", query=query, shared=False, actor=VERA)
    for tenant in (ACME, "open"):
        erased = erase(environment=production, kind="tenant", value=tenant, reason=WHY, actor=ADA)
        assert erased.views == 0


@pytest.mark.django_db(transaction=True)
def test_a_view_that_has_a_tenant_only_in_its_name_is_renamed(production: str) -> None:
    """Each owner keeps the view, under a name that they have only once."""
    create_person("vera")
    names = [f"Like {ACME}, {ACME.upper()}", "Like erased, erased", f"{ACME} ".ljust(LONGEST_NAME, "x")]
    for name in names:
        query = {"tenant": "globex"}
        save_view(environment=production, name=name, page="refusals", query=query, shared=True, actor=VERA)
    assert erase(environment=production, kind="tenant", value=ACME, reason=WHY, actor=ADA).views == 2
    views = SavedView.objects.order_by("pk")
    assert [view.name for view in views] == [
        "Like erased, erased 2",
        "Like erased, erased",
        "erased ".ljust(len(names[2]) - len(ACME) + len("erased"), "x"),
    ]
    assert all(view.query == {"tenant": "globex"} and view.shared for view in views)


@pytest.mark.django_db(transaction=True)
def test_a_name_with_a_short_key_stays_short_enough(production: str) -> None:
    create_person("vera")
    name = "a " * (LONGEST_NAME // 2)
    save_view(environment=production, name=name, page="refusals", query={}, shared=False, actor=VERA)
    erase(environment=production, kind="tenant", value="a", reason=WHY, actor=ADA)
    assert SavedView.objects.get().name == ("erased " * LONGEST_NAME)[:LONGEST_NAME].strip()
