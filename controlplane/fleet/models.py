"""The last reports of the fleet. Only gateways write them; read them through ``controlplane.fleet.live``.

Rows are a copy of the gateway's memory, at most about a second old. The gateway decides on one
clock whether a pod is alive, never by ``last_seen_at``.
"""

from datetime import timedelta

from django.db import models
from django.db.models.functions import Now
from django.utils import timezone

from fuseboard.contract.words import ConfigSource, ConfigStatus, Mode

#: The trigger and the gateways have the same value.
ALTERNATED_LATELY = timedelta(minutes=10)


class ServerState(models.TextChoices):
    """How sure we are that a pod is running."""

    ONLINE = "online"
    #: One heartbeat is overdue.
    LATE = "late"
    #: Its lease has ended: its last report is displayed as last known, not as fact.
    UNKNOWN = "unknown"
    OFFLINE = "offline"
    #: It signed off, or has been silent for a day.
    GONE = "gone"


class Server(models.Model):
    """One running pod."""

    environment = models.CharField(max_length=64)
    name = models.CharField(max_length=64)
    boot = models.CharField(max_length=64)
    service = models.CharField(max_length=64)
    zone = models.CharField(max_length=64, blank=True, default="")
    agent_version = models.CharField(max_length=64)

    state = models.CharField(max_length=16, choices=ServerState)
    mode = models.CharField(max_length=16, choices=[(mode.value, mode.value) for mode in Mode])
    mode_since = models.DateTimeField()
    mode_cause = models.CharField(max_length=500, blank=True, default="")

    epoch = models.BigIntegerField(default=0)
    revision = models.BigIntegerField(default=0)
    config_hash = models.CharField(max_length=64, blank=True, default="")
    config_status = models.CharField(max_length=16, choices=[(s.value, s.value) for s in ConfigStatus])
    config_source = models.CharField(max_length=16, choices=[(s.value, s.value) for s in ConfigSource])
    config_error = models.CharField(max_length=500, blank=True, default="")

    started_at = models.DateTimeField()
    last_seen_at = models.DateTimeField()
    #: The latest time at which the next heartbeat was expected.
    due_at = models.DateTimeField()
    left_at = models.DateTimeField(null=True, blank=True)

    #: The gateway process that heard it last.
    gateway = models.CharField(max_length=100, blank=True, default="", db_default="")
    #: Other processes that send heartbeats under the same name to that gateway.
    rivals = models.IntegerField(default=0, db_default=0)
    #: Processes under this name that ever counted a request. Only these divide local shares.
    spending = models.IntegerField(default=1, db_default=1)
    #: The boot before this one, and how often the two alternated: once for a restart. A trigger counts it.
    previous_boot = models.CharField(max_length=64, blank=True, default="", db_default="")
    alternations = models.IntegerField(default=0, db_default=0)
    alternated_at = models.DateTimeField(null=True, blank=True)

    #: Requests answered per second; for a pod that answers none, the calls it asked for.
    calls_per_s = models.FloatField(default=0.0)
    #: 99th percentile of the store's response times, over about 10 s; null when the store was not asked.
    redis_p99_us = models.IntegerField(null=True, blank=True)
    #: A list of dependency, state, generation, since, until (both unix seconds), override, local,
    #: window_calls, window_failures, consecutive_failures.
    breakers = models.JSONField(default=list)
    #: How busy it is, see ``controlplane.status.facts.PodLoad``; empty when it does not report that.
    load = models.JSONField(default=dict, db_default={})

    #: The selector of the token that its last heartbeat proved; empty if an older gateway wrote the row.
    token = models.CharField(max_length=64, blank=True, default="", db_default="")
    #: Where the connection of its last heartbeat came from: the pod, or the proxy before the gateway.
    address = models.CharField(max_length=64, blank=True, default="", db_default="")
    #: The reserved share that it says it has: level, place and terms; empty for none.
    share = models.JSONField(default=dict, db_default={})
    #: Requests that it allowed without Redis and has not reported, or did not count; empty for none.
    alone = models.JSONField(default=dict, db_default={})
    #: Whether its scripts carry over what is spent when a limit gets another algorithm or period.
    carries_counts = models.BooleanField(default=False, db_default=False)
    #: Its locks, and its work that must not be done twice, see ``controlplane.status.locks``; null for an
    #: agent that does not report them.
    primitives = models.JSONField(null=True)
    #: Pairs of a dependency and a measure that a limit counts, and in which no call has stated a cost.
    uncharged = models.JSONField(default=list, db_default=[])
    #: A list for each limit of a vendor, see ``controlplane.fleet.stated_limits.PodSeen``.
    seen = models.JSONField(default=list, db_default=[])
    #: Whether it enforces budgets.
    enforces_budgets = models.BooleanField(default=False, db_default=False)
    #: Whether it decides for all pods of a node, so that it has no bulkhead, no local rate and no shedding.
    serves_node = models.BooleanField(default=False, db_default=False)
    #: The permits that other processes got from it in the last 10 minutes, see
    #: ``controlplane.status.permits``; empty if it is no sidecar.
    permits = models.JSONField(default=dict, db_default={})
    #: Not stored: the API sets the part of its figures above which it is unhealthy.
    unhealthy_at: float = 1.0

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=["environment", "name"], name="fleet_server_once"),
            models.CheckConstraint(
                condition=models.Q(state__in=ServerState.values), name="fleet_server_state_known"
            ),
        )

    def __str__(self) -> str:
        return f"{self.environment}/{self.name}"

    @property
    def duplicated(self) -> bool:
        """Whether two processes report under this name, to one gateway or to two."""
        lately = self.alternated_at is not None and self.alternated_at > timezone.now() - ALTERNATED_LATELY
        return self.rivals > 0 or (self.alternations > 1 and lately)


class EventKind(models.TextChoices):
    """An event of a pod, as its row shows it."""

    JOINED = "joined", "Joined"
    #: It signed off, or was given up after a day.
    LEFT = "left", "Left"
    #: Its lease has ended.
    SILENT = "silent", "Fell silent"
    OFFLINE = "offline", "Offline"
    #: It sends heartbeats again.
    BACK = "back", "Heard again"
    MODE = "mode", "Mode changed"
    CONFIG_REJECTED = "config_rejected", "Configuration refused"
    CONFIG_ACCEPTED = "config_accepted", "Configuration taken"
    #: Two processes send heartbeats under its name.
    DUPLICATE = "duplicate", "Two of one name"
    #: Its own breaker of a dependency opened or closed; those of the fleet are transitions.
    BREAKER = "breaker", "Own breaker"


#: The trigger has the same value.
MAX_EVENTS_PER_HOUR = 100


class Event(models.Model):
    """One thing that happened to a pod. A trigger on its row writes it, whatever process changed the row.

    It writes at most about ``MAX_EVENTS_PER_HOUR`` of one pod.
    """

    environment = models.CharField(max_length=64)
    server = models.CharField(max_length=64)
    boot = models.CharField(max_length=64)
    at = models.DateTimeField(db_default=Now())
    kind = models.CharField(max_length=16, choices=EventKind)
    detail = models.CharField(max_length=500, blank=True, default="", db_default="")

    class Meta:
        indexes = (
            models.Index(fields=["environment", "server", "-at"], name="fleet_event_of_server"),
            models.Index(fields=["at"], name="fleet_event_by_time"),
            # The overview reads these every second.
            models.Index(
                fields=["environment", "-at", "-id"],
                condition=models.Q(kind__in=("mode", "breaker")),
                name="fleet_event_recent",
            ),
        )

    def __str__(self) -> str:
        return f"{self.environment}/{self.server} {self.kind}"


class OrderKind(models.TextChoices):
    """Orders of an operator to gateways."""

    FORGET = "forget"
    #: Mark silent pods as offline, although many went silent at once.
    LIFT_FREEZE = "lift_freeze"
    #: Forget a tenant that is erased from Postgres, or its next write would bring it back; and all examples
    #: of descriptors.
    ERASE = "erase"


class GatewayOrder(models.Model):
    """An order that every gateway executes once on the fleet in its memory."""

    environment = models.CharField(max_length=64)
    kind = models.CharField(max_length=16, choices=OrderKind)
    #: The pod; or the number of the tenant to erase, because its name must not stay; 0 for another caller.
    server = models.CharField(max_length=64, blank=True)
    at = models.DateTimeField(db_default=Now())

    class Meta:
        indexes = (models.Index(fields=["at"], name="fleet_order_by_time"),)

    def __str__(self) -> str:
        return f"{self.environment} {self.kind} {self.server}"


class _ByGateway(models.Model):
    """A row of one gateway process about the pods that report to it. It writes the row again with news."""

    gateway = models.CharField(max_length=100)
    environment = models.CharField(max_length=64)
    at = models.DateTimeField(db_default=Now())
    document = models.JSONField(default=dict)

    class Meta:
        abstract = True


class FailedCalls(_ByGateway):
    """How calls to one dependency failed lately.

    ``controlplane.gateway.servers.failed_calls`` writes it; ``controlplane.fleet.failed_calls`` reads it.
    """

    dependency = models.CharField(max_length=64)

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=["environment", "dependency", "gateway"], name="fleet_failed_calls_once"
            ),
        )
        indexes = (models.Index(fields=["at"], name="fleet_failed_calls_by_time"),)
        verbose_name_plural = "failed calls"

    def __str__(self) -> str:
        return f"{self.environment}/{self.dependency} seen by {self.gateway}"


class DescriptorFigures(_ByGateway):
    """Descriptors of one domain that Envoy asked for lately.

    ``controlplane.gateway.servers.descriptor_figures`` writes it; ``controlplane.fleet.descriptor_figures``
    reads it.
    """

    domain = models.CharField(max_length=100)

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=["environment", "domain", "gateway"], name="fleet_descriptor_figures_once"
            ),
        )
        indexes = (models.Index(fields=["at"], name="fleet_descriptors_by_time"),)
        verbose_name_plural = "descriptor figures"

    def __str__(self) -> str:
        return f"{self.environment}/{self.domain} seen by {self.gateway}"


class Figures(_ByGateway):
    """The rates that one gateway process measures over the pods that report to it."""

    class Meta:
        constraints = (models.UniqueConstraint(fields=["gateway", "environment"], name="fleet_figures_once"),)
        verbose_name_plural = "figures"

    def __str__(self) -> str:
        return f"{self.environment} seen by {self.gateway}"


class RedisNode(models.Model):
    """A server of Redis "limits", as the worker last read it; one of all environments."""

    address = models.CharField(max_length=255, primary_key=True)
    role = models.CharField(max_length=16)
    up = models.BooleanField()
    #: The id of its process. ``commands`` counts those of this process.
    run_id = models.CharField(max_length=64, blank=True)
    commands = models.BigIntegerField()
    #: Null while it does not answer.
    ops_per_s = models.FloatField(null=True)
    #: CPU of the thread that executes commands, in seconds; and the part of a core that it used between the
    #: last two readings. Null for unknown.
    cpu_s = models.FloatField(null=True)
    cpu_share = models.FloatField(null=True)
    memory_bytes = models.BigIntegerField()
    #: 0 for no limit.
    memory_limit_bytes = models.BigIntegerField()
    #: Null for a primary.
    lag_s = models.FloatField(null=True)
    read_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.role} {self.address}"
