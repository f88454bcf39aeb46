"""How a backlog queues and bounds its jobs, and checks of what callers pass."""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from secrets import token_hex
from typing import TypedDict

from fuseboard.agent_api.arguments import check_costs, check_names, check_seconds
from fuseboard.contract.backlog_figures import MAX_BYTES, MAX_JOBS
from fuseboard.contract.words import is_subject
from fuseboard.errors import Misconfigured

#: Upper bounds. ``MAX_BYTES`` and ``MAX_JOBS`` are in the contract.
MAX_PAYLOAD, MAX_RESULT = 64 * 2**10, 64 * 2**10
MAX_TRIES = 100
DAY_S = 86_400.0
LONGEST_DELAY_S = 7 * DAY_S


class OptionArguments(TypedDict, total=False):
    """The options of ``agent.backlog``; see ``Options``."""

    fair: bool
    sealed: bool
    age_s: float
    age_calls: int
    max_jobs: int
    max_bytes: int
    max_payload: int
    max_memory_percent: int
    max_tries: int
    lease_s: float
    max_run_s: float
    result_s: float


class JobArguments(TypedDict, total=False):
    """The arguments of ``submit``; see ``NewJob``."""

    job_id: str
    tenant: str
    cost: int
    costs: Mapping[str, int] | None
    priority: int
    delay_s: float
    deadline_s: float | None
    max_tries: int | None


_OPTION_NAMES, _JOB_NAMES = (
    frozenset(OptionArguments.__annotations__),
    frozenset(JobArguments.__annotations__),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """All processes that use one backlog should use the same."""

    #: Tenants with waiting jobs get equal parts. A change applies when the backlog is empty.
    fair: bool = False
    #: Payloads and results are sealed with the keys of the service. All workers must be able to open them.
    sealed: bool = False
    #: One step of priority is worth this much waiting: a job goes before jobs of the next higher priority
    #: that arrive later than this after it.
    age_s: float = 60.0
    #: One step of priority in a fair backlog, as the cost of jobs.
    age_calls: int = 100
    max_jobs: int = MAX_JOBS
    max_bytes: int = MAX_BYTES
    max_payload: int = 16 * 2**10
    #: Jobs are refused while Redis uses more than this percentage of its ``maxmemory``.
    max_memory_percent: int = 70
    #: How many times a job is handed out before it is a dead letter.
    max_tries: int = 5
    #: A job of a worker that died is handed out again after this time. The pod of a live worker renews
    #: the lease every ``lease_s / 3``.
    lease_s: float = 30.0
    #: The lease of a job that runs longer is not renewed.
    max_run_s: float = 3600.0
    #: How long results are kept, at most.
    result_s: float = 3600.0

    def __post_init__(self) -> None:
        whole = {
            "age_calls": (1, 10_000),
            "max_jobs": (1, MAX_JOBS),
            "max_bytes": (1, MAX_BYTES),
            "max_payload": (1, MAX_PAYLOAD),
            "max_memory_percent": (1, 95),
            "max_tries": (1, MAX_TRIES),
        }
        spans = {
            "age_s": (0.001, 3600.0),
            "lease_s": (0.05, 3600.0),
            "max_run_s": (0.05, DAY_S),
            "result_s": (1.0, DAY_S),
        }
        for name in ("fair", "sealed"):
            if type(getattr(self, name)) is not bool:
                raise Misconfigured(f"{name} must be True or False, not {getattr(self, name)!r}")
        for name, (least, most) in whole.items():
            value = getattr(self, name)
            if type(value) is not int or not least <= value <= most:
                raise Misconfigured(f"{name} must be a whole number from {least} to {most}, not {value!r}")
        for name, (shortest, longest) in spans.items():
            check_seconds(name, getattr(self, name), shortest, longest)

    @staticmethod
    def read(arguments: OptionArguments) -> "Options":
        """Read the arguments of ``backlog``. Raises ``Misconfigured``; ``TypeError`` for an unknown one."""
        check_names("backlog", arguments.keys(), _OPTION_NAMES)
        return Options(**arguments)

    def refuse_others(self, dependency: str, wanted: "Options") -> None:
        """Raise ``Misconfigured`` unless the backlog, which has these options, is used with the same."""
        names = [one.name for one in fields(self)]
        different = [name for name in names if getattr(self, name) != getattr(wanted, name)]
        if different:
            raise Misconfigured(
                f"the backlog of {dependency!r} is in use with other values of {', '.join(different)}: use"
                " one set of options in all processes"
            )


def check_id(value: object) -> str:
    if not isinstance(value, str) or not value or not is_subject(value):
        raise Misconfigured(
            f"the id of a job must be 1 to 200 characters without control characters, not {value!r:.80}"
        )
    return value


def check_priority(value: object) -> int:
    if type(value) is not int or not 1 <= value <= 10:
        raise Misconfigured(
            f"priority must be a whole number from 1 to 10, not {value!r}. The highest goes first. If you "
            "convert from 0 to 9 with the lowest first, pass 10 - p"
        )
    return value


def to_bytes(what: str, value: object, most: int) -> bytes:
    """A payload or a result, as bytes."""
    try:
        data = value.encode() if isinstance(value, str) else b"" if value is None else value
    except UnicodeEncodeError:
        raise Misconfigured(f"{what} contains text that is not valid Unicode: pass bytes") from None
    if not isinstance(data, bytes | bytearray | memoryview):
        raise Misconfigured(
            f"{what} must be bytes or text, not {type(value).__name__}: encode it, for example as JSON"
        )
    data = bytes(data)
    if len(data) > most:
        raise Misconfigured(
            f"{what} has {len(data)} bytes; the limit is {most}. Store it elsewhere, and pass its address"
        )
    return data


@dataclass(slots=True)
class NewJob:
    """A job that a caller submits. Raises ``Misconfigured``."""

    options: Options
    payload: bytes | str
    job_id: str = ""
    tenant: str = ""
    cost: int = 1
    costs: Mapping[str, int] | None = None
    priority: int = 5
    delay_s: float = 0.0
    deadline_s: float | None = None
    max_tries: int | None = None
    body: bytes = field(init=False)
    tries: int = field(init=False)

    def __post_init__(self) -> None:
        if self.costs is not None:
            check_costs(self.costs)
        self.body = to_bytes("a payload", self.payload, self.options.max_payload)
        self.job_id = check_id(self.job_id) if self.job_id else token_hex(12)
        check_priority(self.priority)
        check_seconds("delay_s", self.delay_s, 0.0, LONGEST_DELAY_S)
        if self.deadline_s is not None:
            check_seconds("deadline_s", self.deadline_s, 0.001, LONGEST_DELAY_S)
        self.tries = self.options.max_tries if self.max_tries is None else self.max_tries
        if type(self.tries) is not int or not 1 <= self.tries <= self.options.max_tries:
            raise Misconfigured(f"max_tries must be 1 to {self.options.max_tries}, not {self.max_tries!r}")

    @staticmethod
    def read(options: Options, payload: bytes | str, arguments: JobArguments) -> "NewJob":
        """Read the arguments of ``submit``. Raises ``Misconfigured``; ``TypeError`` for an unknown one."""
        check_names("submit", arguments.keys(), _JOB_NAMES)
        return NewJob(options, payload, **arguments)

    @property
    def delay_us(self) -> int:
        return int(self.delay_s * 1e6)

    @property
    def deadline_us(self) -> int:
        """The time until the deadline; 0 without one."""
        return int(self.deadline_s * 1e6) if self.deadline_s is not None else 0


#: The default of each argument of ``submit``.
JOB_DEFAULTS = {one.name: one.default for one in fields(NewJob) if one.default is not MISSING}
