"""The request limits as a file for nginx, parsed as nginx does, to find the limits of each tenant."""

import re
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from controlplane.editing import edits
from controlplane.policies.nginx import MAX_OWN, export_nginx
from tests.controlplane.calling import API
from tests.controlplane.monitoring.monitoring_tools import run

#: The tokens of nginx: comments, quoted and bare words, and separators.
_TOKEN = re.compile(r'\s+|#[^\n]*|"((?:[^"\\]|\\.)*)"|([^\s;{}"#]+)|([;{}])', re.DOTALL)
_TAKES = {"limit_req_zone": 3, "limit_req_status": 1, "map_hash_max_size": 1, "map_hash_bucket_size": 1}


@dataclass
class Nginx:
    """Evaluates the directives that the export uses, as nginx does."""

    maps: dict[str, tuple[str, dict[str, str]]] = field(default_factory=dict)
    #: Zone -> variable of its key, rate.
    zones: dict[str, tuple[str, str]] = field(default_factory=dict)
    #: Zone -> burst.
    used: dict[str, int] = field(default_factory=dict)

    def value(self, name: str, request: dict[str, str]) -> str:
        if name in request or name not in self.maps:
            return request.get(name, "")
        source, entries = self.maps[name]
        asked = self.value(source, request)
        found = next(
            (to for key, to in entries.items() if key.lower() == asked.lower() and key != "default"), None
        )
        if found is None:
            # Bytes, as without (*UTF8).
            patterns = ((key[1:].encode(), to) for key, to in entries.items() if key.startswith("~"))
            found = next((to for key, to in patterns if re.search(key, asked.encode())), entries["default"])
        return self.value(found, request) if found.startswith("$") else found

    def key(self, text: str, request: dict[str, str]) -> str:
        return self.value(text, request) if text.startswith("$") else text

    def limits(self, tenant: str) -> set[tuple[str, int, str]]:
        """Rate, burst and key of every zone that counts a request of this tenant."""
        request = {"$http_x_tenant": tenant, "$binary_remote_addr": "an address"}
        counted = {zone: self.key(key, request) for zone, (key, _) in self.zones.items()}
        used = {zone: key for zone, key in counted.items() if key and zone in self.used}
        return {(self.zones[zone][1], self.used[zone], key) for zone, key in used.items()}

    def refused(self, tenant: str) -> str:
        return self.value("$fuseboard_refused", {"$http_x_tenant": tenant})


def read(text: str) -> Nginx:
    found, words, at = Nginx(), [], 0
    block: dict[str, str] | None = None
    while at < len(text):
        token = _TOKEN.match(text, at)
        assert token, f"nginx would stop at {text[at : at + 40]!r}"
        at = token.end()
        quoted, bare, mark = token.groups()
        if quoted is not None or bare is not None:
            words.append(bare if quoted is None else re.sub(r'\\(["\'\\])', r"\1", quoted))
        elif mark == "{":
            assert block is None
            directive, source, target = words
            assert (directive, target in found.maps) == ("map", False)
            block, words = {}, []
            found.maps[target] = (source, block)
        elif mark == "}":
            assert (words, block is None) == ([], False)
            assert "default" in (block or {})
            block = None
        elif mark == ";" and block is not None:
            key, to = words
            assert key.lower() not in {known.lower() for known in block if not known.startswith("~")}
            block[key], words = to, []
        elif mark == ";":
            _directive(found, *words)
            words = []
    assert (words, block) == ([], None)
    assert found.used.keys() <= found.zones.keys()
    return found


def _directive(found: Nginx, name: str, *values: str) -> None:
    if name == "limit_req":
        zone, *rest = values
        assert rest in ([], [f"burst={rest[0][6:]}", "nodelay"] if rest else [])
        found.used[zone.removeprefix("zone=")] = int(rest[0].removeprefix("burst=")) if rest else 0
        return
    assert len(values) == _TAKES[name]
    if name == "limit_req_zone":
        shaped = re.fullmatch(r"zone=(\w+):\d+m rate=([1-9]\d*r/[sm])", " ".join(values[1:]))
        assert shaped
        found.zones[shaped[1]] = (values[0], shaped[2])


@pytest.fixture
def edit(production: str, ada: Any) -> Any:
    def edit(name: str, /, **values: Any) -> None:
        usual = (
            {"limit": 60, "window_s": 60, "burst": 1} if "limit" not in values and "quota" in values else {}
        )
        if name.startswith("set_t"):
            usual |= {"expected_version": None}
        getattr(edits, name)(environment=production, reason="for a test", actor=ada, **usual, **values)

    return edit


def made(**options: Any) -> Nginx:
    return read("".join(export_nginx("production", **options)))


def test_each_tenant_gets_the_limits_of_its_tier(edit: Any) -> None:
    edit("create_tenant", tenant="big", tier="enterprise")
    nginx = made()
    assert nginx.limits("acme") == {("1000r/m", 99, "acme")}
    assert nginx.limits("big") == {("10000r/m", 999, "big")}
    assert nginx.limits("a stranger") == nginx_default(nginx)
    assert nginx.limits("") == set()
    assert [nginx.refused(tenant) for tenant in ("acme", "", "a stranger")] == ["0", "0", "0"]


def nginx_default(nginx: Nginx) -> set[tuple[str, int, str]]:
    from controlplane.policies.models import Environment

    [quota] = Environment.objects.get(pk="production").default_tier.quotas.all()
    assert quota.window_s == 60
    return {(f"{quota.limit}r/m", quota.burst - 1, "a stranger")}


def test_own_limits_of_a_tenant_replace_those_of_its_tier(edit: Any) -> None:
    edit("create_tenant", tenant="other", tier="pro")
    for tenant in ("acme", "other"):
        edit("set_tenant_quota", tenant=tenant, quota="requests", limit=1200, window_s=60, burst=50)
    edit(
        "set_tenant_quota",
        tenant="acme",
        quota="hourly",
        limit=100,
        window_s=3600,
        algorithm="sliding_window",
        burst=1,
    )
    nginx = made()
    assert nginx.limits("other") == {("20r/s", 49, "other")}
    assert nginx.limits("acme") == {("20r/s", 49, "acme"), ("1r/m", 99, "acme")}


def test_callers_without_a_tenant_are_counted_by_their_address(edit: Any) -> None:
    edit("set_subject_limit", name="addresses", limit=30, window_s=1, burst=30, per=["ip"])
    edit("set_subject_limit", name="keys", limit=10, window_s=1, burst=1, per=["api_key"])
    nginx = made()
    assert nginx.limits("") == {("30r/s", 29, "an address")}
    assert nginx.limits("acme") == {("1000r/m", 99, "acme")}


def test_all_callers_share_one_zone(edit: Any) -> None:
    edit("set_subject_limit", name="flood", limit=6_000, window_s=60, burst=200, service="*")
    edit("set_subject_limit", name="uploads", limit=600, window_s=60, service="web")
    edit("set_subject_limit", name="closed", limit=0, window_s=60, service="*")
    nginx, text = made(), "".join(export_nginx("production"))
    assert nginx.limits("") == {("100r/s", 199, "all")}
    assert nginx.limits("acme") == {("100r/s", 199, "all"), ("1000r/m", 99, "acme")}
    # A location is not known here: its zone is there, and the line to put into it.
    assert "#   limit_req zone=fuseboard_all_2;\n" in text
    assert nginx.zones["fuseboard_all_2"] == ("all", "10r/s")
    assert "# Left out: all callers, closed: refuses every request" in text


def test_gateways_share_the_limits(edit: Any) -> None:
    assert made(gateways=4, header="X-Tenant").limits("acme") == {("250r/m", 24, "acme")}
    assert made(gateways=1000).limits("acme") == {("1r/m", 0, "acme")}


def test_suspended_tenants_and_limits_of_0_are_refused(edit: Any) -> None:
    edit("create_tenant", tenant="blocked", tier="pro")
    edit("suspend_tenant", tenant="acme", expected_version=None)
    edit("set_tenant_quota", tenant="blocked", quota="requests", limit=0, window_s=60, burst=1)
    nginx = made()
    assert [nginx.refused(tenant) for tenant in ("acme", "blocked", "nobody")] == ["403", "429", "0"]
    assert nginx.limits("acme") == nginx.limits("blocked") == set()


def test_limits_that_nginx_cannot_count_are_listed_and_left_out(edit: Any) -> None:
    before = made().limits("acme")
    for quota, columns in {
        "slots": {"algorithm": "concurrency"},
        "tokens": {"measure": "tokens"},
        "llm": {"dependency": "openai"},
        "users": {"per": ["user"]},
        "trial": {"shadow": True},
    }.items():
        edit("set_tier_quota", tier="pro", quota=quota, **columns)
    text = "".join(export_nginx("production"))
    for quota in ("slots", "tokens", "llm", "users", "trial"):
        assert f"# Left out: tier pro, {quota}: " in text
    assert read(text).limits("acme") == before


def test_tenants_can_have_any_id(edit: Any) -> None:
    odd = (
        "a/b",
        "default",
        "~^.*$",
        "a b",
        'x"; return 200; #',
        "\\d",
        "ü",
        "$host",
        "a.c",
        "*.x",
        "Acme2",
        "acme2",
    )
    for tenant in odd:
        edit("create_tenant", tenant=tenant, tier="enterprise")
    nginx = made()
    for tenant in odd:
        assert nginx.limits(tenant) == {("10000r/m", 999, tenant)}, tenant
    assert nginx.limits("abc") == {(rate, burst, "abc") for rate, burst, _ in nginx_default(nginx)}
    assert nginx.limits("ACME2") == {(rate, burst, "ACME2") for rate, burst, _ in nginx_default(nginx)}


def test_with_too_many_own_limits_the_tiers_apply(edit: Any, production: str, ada: Any) -> None:
    from controlplane.editing.plans import apply_plan, plan_from_document

    quotas = {
        f"t{n}": {"tier": "pro", "quotas": {"requests": {"limit": 5000 + n, "window_s": 60}}}
        for n in range(MAX_OWN + 5)
    }
    plan = plan_from_document({"tenants": quotas})
    apply_plan(environment=production, plan=plan, expected_revision=None, reason="for a test", actor=ada)
    text = "".join(export_nginx("production"))
    nginx = read(text)
    assert "different own limits of tenants" in text
    assert sum(nginx.limits(key) == {("1000r/m", 99, key)} for key in quotas) == 5


def test_the_api_answers_with_it(call: Any) -> None:
    answer = call("admin", "GET", f"{API}/export?format=nginx&header=X-Org-Id&gateways=2")
    assert (answer.status_code, answer["Content-Type"]) == (200, "text/plain")
    assert 'filename="production.conf"' in answer["Content-Disposition"]
    assert read(answer.content.decode()).maps["$fuseboard_class"][0] == "$http_x_org_id"
    for odd in ("header=a%20b", "header=x%0a", "header=%7b", "gateways=0", "gateways=1001", "gateways=x"):
        assert call("admin", "GET", f"{API}/export?format=nginx&{odd}").status_code == 422, odd


def test_nginx_counts_an_ipv6_client_by_its_network_and_ipv4_as_ipv4(edit: Any, ada: Any) -> None:
    edit("set_subject_limit", name="addresses", limit=30, window_s=1, burst=30, per=["ip"])
    for prefix, network in ((64, "2001:db8:7:1::"), (60, "2001:db8:7::"), (128, "2001:db8:7:1::9")):
        edits.set_tuning(
            environment="production", tuning={"ipv6_prefix": prefix}, reason="for a test", actor=ada
        )
        source, entries = made().maps["$fuseboard_address"]
        assert (source, entries["default"]) == ("$binary_remote_addr", "$binary_remote_addr")
        patterns = [re.compile(key[1:].encode()) for key in entries if key.startswith("~")]

        def counted(address: str, patterns: list[re.Pattern[bytes]] = patterns) -> bytes:
            packed = ip_address(address).packed
            found = next((one for one in (pattern.search(packed) for pattern in patterns) if one), None)
            return found[1] if found is not None else packed

        for same in ("::ffff:192.0.2.7", "64:ff9b::192.0.2.7", "::192.0.2.7", "::ffff:0:192.0.2.7"):
            assert counted(same) == counted("192.0.2.7"), same
        assert counted("2001:db8:7:1::9") == ip_address(network).packed[: prefix // 8]
        for alone in ("fe80::5", "::1"):
            assert counted(alone) == ip_address(alone).packed


def test_nginx_takes_the_file_with_the_lines_of_the_page(edit: Any, tmp_path: Path) -> None:
    edit("set_subject_limit", name="addresses", limit=30, window_s=1, burst=30, per=["ip"])
    edit("create_tenant", tenant='x"; return 200; #', tier="enterprise")
    (tmp_path / "fuseboard.conf").write_text("".join(export_nginx("production", gateways=2)))
    page = (Path(__file__).parents[3] / "docs/deployment.md").read_text()
    block = page.partition("## nginx in front")[2].partition("```nginx")[2].partition("```")[0]
    block = block.replace("/etc/nginx/", f"{tmp_path}/").replace("server {", "server { listen 127.0.0.1:1;")
    file = tmp_path / "nginx.conf"
    file.write_text(f"pid {tmp_path}/pid; error_log stderr; events {{}}\n{block}")
    tried = run("nginx", "-t", "-p", tmp_path, "-c", file)
    assert "syntax is ok" in tried.stderr, tried.stderr
