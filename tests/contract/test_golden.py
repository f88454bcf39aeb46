"""The wire, from both ends: what one side writes is the file, what the other reads is the object."""

from pathlib import Path

import msgspec
import pytest

from fuseboard.contract.budget_limits import limit_of
from fuseboard.contract.budgets import AtSpent
from fuseboard.contract.limits import PolicyError
from fuseboard.contract.policy import (
    Policy,
    TenantRecord,
    decode_policy,
    decode_tenant,
    encode_policy,
    encode_tenant,
    hash_of,
)
from fuseboard.contract.sync import (
    NO_POLICY,
    decode_nudge,
    decode_request,
    decode_response,
    encode,
)
from fuseboard.contract.words import Outcome
from tests.contract.examples import (
    EXAMPLES,
    EXHAUSTED,
    NESTING_REQUEST,
    POLICY,
    PROTECTED_REQUEST,
    PROTECTING_POLICY,
    SHED_REQUEST,
    STREAMING_POLICY,
)
from tests.contract.failing_examples import FAILURES
from tests.contract.sample_examples import (
    ALONE,
    DESCRIPTORS,
    EVIDENCE,
    PACES,
    PERMITS,
    PRIMITIVES,
    SAMPLES,
    SEEN,
    TALLY,
    TRACED,
    UNCHARGED,
    UNSEALED,
    USAGE,
)

GOLDEN = Path(__file__).parent / "golden"

DECODERS = {
    "policy": decode_policy,
    "tenant": decode_tenant,
    "sync_request": decode_request,
    "sync_response": decode_response,
    "nudge": decode_nudge,
}


def golden(name):
    return (GOLDEN / name).read_bytes().rstrip(b"\n")


def written(example):
    """As the side that sends it writes it."""
    if isinstance(example, Policy):
        return encode_policy(example)
    if isinstance(example, TenantRecord):
        return encode_tenant(example)
    return encode(example)


def test_no_golden_file_was_added_or_deleted_without_its_example():
    assert {path.name for path in GOLDEN.iterdir()} == set(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_receiving_side_reads_the_file(name):
    decode = DECODERS[name.split(".")[0]]
    assert decode(golden(name)) == EXAMPLES[name]


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_sending_side_writes_the_file_or_what_reads_the_same(name):
    document = written(EXAMPLES[name])
    assert msgspec.json.decode(document) == msgspec.json.decode(golden(name))


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name.startswith(("policy", "tenant"))])
def test_a_policy_has_one_spelling_byte_for_byte(name):
    assert written(EXAMPLES[name]) == golden(name)


def test_the_hash_of_a_policy_never_changes():
    assert hash_of(golden("policy.1.json")) == hash_of(encode_policy(POLICY)) == "c64f62f96bb46a75"


def test_an_answer_without_news_carries_no_policy():
    assert decode_response(golden("sync_response.1.smallest.json")).policy == NO_POLICY


def test_the_policy_in_an_answer_keeps_its_bytes():
    answer = decode_response(golden("sync_response.1.json"))
    assert decode_policy(answer.policy).default_tier == "free"
    assert bytes(answer.policy) in golden("sync_response.1.json")


@pytest.mark.parametrize("name", EXAMPLES)
def test_fields_of_a_later_release_are_ignored(name):
    decode = DECODERS[name.split(".")[0]]
    later = golden(name)[:-1] + b',"invented_later":{"deep":[1,null,"x"]}}'
    assert decode(later) == EXAMPLES[name]


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("policy.1.json", b'"reserved"', b'"invented"'),
        ("policy.1.json", b'"forced_open"', b'"invented"'),
        ("sync_request.1.json", b'"half_open"', b'"ajar"'),
        ("sync_request.1.json", b'"quota":120', b'"mood":120'),
    ],
)
def test_an_unknown_word_refuses_the_document_whole(name, old, new):
    document = golden(name)
    assert old in document
    with pytest.raises(msgspec.ValidationError):
        DECODERS[name.split(".")[0]](document.replace(old, new))


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_torn_document_is_refused_wherever_it_was_torn(name):
    decode, document = DECODERS[name.split(".")[0]], golden(name)
    for length in range(len(document)):
        with pytest.raises((msgspec.DecodeError, UnicodeDecodeError)):
            decode(document[:length])


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        (b'"default_tier":"free"', b'"default_tier":"gold"', "default_tier"),
        (b'"name":"ledger"', b'"name":"openai"', "dependencies"),
        (b'"name":"enterprise"', b'"name":"free"', "tiers"),
    ],
)
def test_a_policy_that_contradicts_itself_is_refused_naming_the_field(old, new, named):
    document = golden("policy.1.json")
    assert old in document
    with pytest.raises(PolicyError, match=named):
        decode_policy(document.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        (b'"measure":"tokens"', b'"measure":"calls"', "gpt.budgets.tokens.measure"),
        (b"Europe/Berlin", b"Europe/Bonn", "openai-main.budgets.monthly.time_zone"),
        (b'"name":"spare"', b'"name":"openai-main"', "accounts"),
        (b'{"name":"spare"}', b'{"name":"spare","pools":["gpt"]}', "accounts.pools"),
    ],
)
def test_accounts_and_budgets_that_contradict_themselves_are_refused_naming_the_field(old, new, named):
    document = golden("policy.budgets.json")
    assert old in document
    with pytest.raises(PolicyError, match=named):
        decode_policy(document.replace(old, new))


def test_a_budget_with_a_word_of_a_later_release_does_not_refuse_the_policy():
    document = golden("policy.budgets.json").replace(b'"at_100":"degrade"', b'"at_100":"invented"')
    (account, _) = decode_policy(document).accounts
    assert account.budgets[0].at_100 == "invented"
    assert limit_of(account.budgets[0]).at_spent is AtSpent.STOP


@pytest.mark.parametrize("amount", [-1, 2**53, 2**63])
def test_a_budget_is_exact_or_refused(amount):
    document = golden("tenant.budgets.json").replace(b"900000", b"%d" % amount)
    with pytest.raises(msgspec.ValidationError):
        decode_tenant(document)


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        (b'"shares":[60,30,10]', b'"shares":[60,30,11]', "openai.protection.bulkhead.shares"),
        (b'"cap_ms":60000', b'"cap_ms":999', "openai.protection.retry.cap_ms"),
        (b'"shed_hard_at":95', b'"shed_hard_at":59', "protection.shedding.shed_hard_at"),
        (
            b'"routes":[{"pattern":"POST /v1/*","sla_ms":2000}]',
            b'"routes":[{"pattern":"GET /a","sla_ms":1},{"pattern":"GET /a","sla_ms":2}]',
            "protection.routes",
        ),
    ],
)
def test_a_protection_that_contradicts_itself_is_refused_naming_the_field(old, new, named):
    document = golden("policy.3.json")
    assert old in document
    with pytest.raises(PolicyError, match=named):
        decode_policy(document.replace(old, new))


@pytest.mark.parametrize(
    "example",
    [
        # Samples, failures and tallies came later, and are in other files.
        msgspec.structs.replace(
            PROTECTED_REQUEST,
            refusals=SAMPLES,
            failures=FAILURES,
            tally=TALLY,
            alone=ALONE,
            primitives=PRIMITIVES,
            carries_counts=True,
            uncharged=UNCHARGED,
            seen=SEEN,
            enforces_budgets=True,
            serves_node=True,
            usage=USAGE,
            descriptors=DESCRIPTORS,
            permits=PERMITS,
        ),
        DESCRIPTORS,
        PERMITS,
        # Fields that came later are in another file.
        msgspec.structs.replace(
            EVIDENCE[0],
            followed=SEEN[0].followed,
            left=7,
            took_ms=PACES[0].took_ms,
            lowest_ms=PACES[0].lowest_ms,
        ),
        UNCHARGED[0],
        ALONE,
        PRIMITIVES,
        PRIMITIVES.locks,
        # A field that came later is in another file.
        msgspec.structs.replace(PRIMITIVES.once, unsealed=UNSEALED.once.unsealed),
        PRIMITIVES.held[0],
        # Fields that came later are in another file.
        msgspec.structs.replace(
            PROTECTED_REQUEST.load,
            late=SHED_REQUEST.load.late,
            priorities=SHED_REQUEST.load.priorities,
            shares_idle=True,
        ),
        msgspec.structs.replace(SAMPLES[0], trace=TRACED[0].trace),
        FAILURES[0],
        msgspec.structs.replace(FAILURES[0].last[0], outcome=Outcome.SLOW),
        # Fields that came later are in another file.
        msgspec.structs.replace(
            PROTECTED_REQUEST.protection[0],
            reclaimed=NESTING_REQUEST.protection[0].reclaimed,
            nested=NESTING_REQUEST.protection[0].nested,
            exhausted=EXHAUSTED[0].exhausted,
        ),
        PROTECTED_REQUEST.protection[0].tiers[0],
        PROTECTING_POLICY.protection,
        PROTECTING_POLICY.protection.shedding,
        PROTECTING_POLICY.protection.readiness,
        PROTECTING_POLICY.protection.observe,
        msgspec.structs.replace(
            PROTECTING_POLICY.dependencies[0].protection,
            timeouts_ms=STREAMING_POLICY.dependencies[0].protection.timeouts_ms,
        ),
        # ``share_idle`` came later, and is in another file.
        msgspec.structs.replace(PROTECTING_POLICY.dependencies[0].protection.bulkhead, share_idle=True),
        PROTECTING_POLICY.dependencies[0].protection.local_rate,
        PROTECTING_POLICY.dependencies[0].protection.retry,
    ],
    ids=lambda example: type(example).__name__,
)
def test_every_field_of_an_example_differs_from_its_default(example):
    """So that the golden file would notice any of them gone."""
    assert set(msgspec.json.decode(encode(example))) == set(example.__struct_fields__)
