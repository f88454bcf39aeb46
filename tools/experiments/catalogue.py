"""Every experiment, in the order of the page. Those of ``SIMULATED`` take no real time."""

from tools.experiments.adaptive_queue import adaptive_queue
from tools.experiments.bulkhead_isolation import bulkhead_isolation
from tools.experiments.following import following
from tools.experiments.following_at_once import following_at_once
from tools.experiments.little import little
from tools.experiments.load_steps import load_steps
from tools.experiments.local_capacity import local_capacity, local_capacity_in_real_time
from tools.experiments.one_bad_pod import one_bad_pod
from tools.experiments.overload import overload, overload_in_real_time
from tools.experiments.own_machines import own_machines
from tools.experiments.result import Experiment
from tools.experiments.retries import budget_table, retry_storm, sustained_failures
from tools.experiments.shared_key import shared_key
from tools.experiments.shedding_by_tier import (
    overload_and_recovery,
    shedding_by_pressure,
    shedding_by_priority,
)
from tools.experiments.sizing import sizing
from tools.experiments.slow_redis import slow_redis
from tools.experiments.small_parts import small_parts
from tools.experiments.storm_processes import storm_of_processes
from tools.experiments.token_reserve import token_reserve
from tools.experiments.vendor_processes import vendors_as_processes

SIMULATED: dict[str, Experiment] = {
    "T1": adaptive_queue,
    "T3": shedding_by_priority,
    "T4": little,
    "T5": load_steps,
    "T6": local_capacity,
    "T9": sizing,
    "T10": budget_table,
    "T11": shedding_by_pressure,
    "T19": bulkhead_isolation,
    "T20": sustained_failures,
    "T23": overload_and_recovery,
    "T24": retry_storm,
    "T26": overload,
    "T27": shared_key,
}
#: In virtual time, and too long for a test.
LONG: dict[str, Experiment] = {
    "T28": following,
    "T29": token_reserve,
    "T30": following_at_once,
    "T31": own_machines,
}
#: With real processes, sockets and seconds.
REAL: dict[str, Experiment] = {
    "T2": one_bad_pod,
    "T6": local_capacity_in_real_time,
    "T14": slow_redis,
    "T18": small_parts,
    "T25": storm_of_processes,
    "T26": overload_in_real_time,
    "T32": vendors_as_processes,
}
EVERY: dict[str, Experiment] = dict(
    sorted((SIMULATED | LONG | REAL).items(), key=lambda item: int(item[0].removeprefix("T")))
)
