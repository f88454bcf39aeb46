"""Usual values to start a template from. Each can be changed before it is saved."""

from dataclasses import dataclass

from fuseboard.contract.words import Algorithm, FailurePolicy


@dataclass(frozen=True, kw_only=True)
class TemplateStart:
    title: str
    limit: int
    burst: int
    window_s: int = 60
    algorithm: Algorithm = Algorithm.TOKEN_BUCKET
    failure_policy: FailurePolicy = FailurePolicy.FAIL_OPEN


#: Name of the template -> its values. Reads and writes have a smallest and a usual size.
STARTS: dict[str, TemplateStart] = {
    "login": TemplateStart(
        title="Logins, by user and address",
        limit=10,
        burst=1,
        # Guessing passwords must stay slow in any minute, and while Redis is down.
        algorithm=Algorithm.SLIDING_WINDOW,
        failure_policy=FailurePolicy.LOCAL_SHARE,
    ),
    # Each of these sends a message or costs an account: few per hour are enough for a person.
    "password-reset": TemplateStart(
        title="Password resets, by user and address",
        limit=5,
        burst=1,
        window_s=3_600,
        algorithm=Algorithm.SLIDING_WINDOW,
        failure_policy=FailurePolicy.LOCAL_SHARE,
    ),
    "register": TemplateStart(
        title="Registrations, by address",
        limit=10,
        burst=1,
        window_s=3_600,
        algorithm=Algorithm.SLIDING_WINDOW,
        failure_policy=FailurePolicy.LOCAL_SHARE,
    ),
    "uploads": TemplateStart(title="Uploads", limit=10, burst=3, failure_policy=FailurePolicy.LOCAL_SHARE),
    "llm": TemplateStart(
        title="Requests that call a language model",
        limit=20,
        burst=5,
        failure_policy=FailurePolicy.LOCAL_SHARE,
    ),
    "reads-small": TemplateStart(title="Requests that read, small tenants", limit=100, burst=20),
    "reads": TemplateStart(title="Requests that read", limit=1_000, burst=100),
    "writes-small": TemplateStart(title="Requests that write, small tenants", limit=20, burst=5),
    "writes": TemplateStart(title="Requests that write", limit=100, burst=20),
}
