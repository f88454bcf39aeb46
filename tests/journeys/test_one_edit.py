"""One quota edit, followed from the form to the page that shows which pods decide by it."""

import asyncio
import re

import redis

import fuseboard
from controlplane.audit.models import Entry
from controlplane.fleet.live import confirmed
from controlplane.policies.models import Environment, TenantQuota
from controlplane.publishing.models import OutboxEntry
from fuseboard.contract import keys
from fuseboard.contract.policy import decode_tenant
from tests.waiting import eventually, wait_until
from tools.demo.browser import Browser
from tools.demo.processes import Processes
from tools.demo.scenario import PENNY, QUOTA
from tools.demo.seed import ENVIRONMENT, Seeded

NEW_LIMIT = 41
REASON = "Penny upgraded her plan"
PAGE = f"/tenant?key={PENNY}"
EDITOR = f"/edit/tenant?key={PENNY}"
LIMIT, BURST = f"limit.{QUOTA}.limit", f"limit.{QUOTA}.burst"


def test_an_edit_travels_from_the_form_to_every_server_and_back_to_the_page(
    control_plane: Processes, seeded: Seeded, limits: redis.Redis, redis_url: str, tmp_path
):
    browser = Browser(control_plane.by_name["web"].url)
    browser.log_in("admin", seeded.logins["admin"])
    agent = fuseboard.Agent(
        settings=fuseboard.AgentSettings(
            redis_url=redis_url,
            url=control_plane.by_name["gateway"].url,
            token=seeded.agent_token,
            service="shop",
            server="shop-1",
            state_dir=tmp_path / "state",
        )
    )
    with asyncio.Runner() as runner:
        runner.run(agent.start())
        try:
            first = runner.run(agent.admit_request(PENNY))
            before = Environment.objects.get(pk=ENVIRONMENT).revision
            assert first.revision == before

            the_form_is_sent(browser)
            revision = before + 1

            the_database_has_row_audit_and_outbox(revision)
            redis_has_the_revision(limits, revision)
            decision = runner.run(a_decision_of(agent, revision))
            assert [limit.limit for limit in decision.limits] == [NEW_LIMIT]
            # In a thread, because the pod's loop must keep running for its heartbeats.
            runner.run(asyncio.to_thread(the_page_says_who_decides_by_it, browser, revision))
            assert confirmed(ENVIRONMENT, revision, epoch=1) == (1, 1)
        finally:
            runner.run(agent.stop())
            browser.close()


def the_form_is_sent(browser: Browser) -> None:
    form = browser.form(EDITOR, LIMIT, BURST, "reason")
    answer = browser.send(form, **{LIMIT: str(NEW_LIMIT), BURST: str(NEW_LIMIT)}, reason=REASON)
    assert answer.status_code == 200


def the_database_has_row_audit_and_outbox(revision: int) -> None:
    assert Environment.objects.get(pk=ENVIRONMENT).revision == revision
    quota = TenantQuota.objects.select_related("tenant").get(tenant__key=PENNY, name=QUOTA)
    assert (quota.limit, quota.tenant.changed_revision) == (NEW_LIMIT, revision)
    entry = Entry.objects.get(environment=ENVIRONMENT, revision=revision)
    assert (entry.actor, entry.role, entry.origin, entry.reason) == ("admin", "admin", "form", REASON)
    # Published by the process that made the edit: no worker runs here.
    assert OutboxEntry.objects.get(environment=ENVIRONMENT, revision=revision).published_at is not None


def redis_has_the_revision(limits: redis.Redis, revision: int) -> None:
    assert int(limits.hget(keys.config_head(ENVIRONMENT), "revision")) == revision
    bucket = keys.own_bucket(ENVIRONMENT, keys.tenant_bucket_number(PENNY))
    record = decode_tenant(limits.hget(bucket, PENNY))
    assert [(limit.name, limit.limit) for limit in record.quotas] == [(QUOTA, NEW_LIMIT)]


async def a_decision_of(agent: fuseboard.Agent, revision: int) -> fuseboard.Decision:
    def is_of(decision: fuseboard.Decision) -> bool:
        assert decision.revision <= revision
        # The record may arrive after its head, if the agent had missed a revision.
        return decision.revision == revision and [limit.limit for limit in decision.limits] == [NEW_LIMIT]

    return await eventually(lambda: agent.admit_request(PENNY), accept=is_of)


def the_page_says_who_decides_by_it(browser: Browser, revision: int) -> None:
    def said() -> str:
        rollout = re.search(r'id="rollout".*?</p>', browser.read(PAGE), re.DOTALL)
        return re.sub(r"<[^>]*>", "", rollout.group(0)) if rollout else "nothing about a rollout"

    decides = re.compile(rf"revision {revision}:\s*1 of 1\s*pod\s*has applied")
    wait_until(said, "the rollout", accept=decides.search, every_s=0.05)
