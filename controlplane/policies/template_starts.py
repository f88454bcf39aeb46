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
    "reads-small": TemplateStart(title="Requests that read, small tenants", limit=100, burst=20),
    "reads": TemplateStart(title="Requests that read", limit=1_000, burst=100),
    "writes-small": TemplateStart(title="Requests that write, small tenants", limit=20, burst=5),
    "writes": TemplateStart(title="Requests that write", limit=100, burst=20),
}
