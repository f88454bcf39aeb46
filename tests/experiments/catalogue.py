"""Every experiment, in the order of the page. Those of ``SIMULATED`` take no real time."""

from tests.experiments.adaptive_queue import adaptive_queue
from tests.experiments.bulkhead_isolation import bulkhead_isolation
from tests.experiments.little import little
from tests.experiments.load_steps import load_steps
from tests.experiments.local_capacity import local_capacity, local_capacity_in_real_time
from tests.experiments.one_bad_pod import one_bad_pod
from tests.experiments.overload import overload, overload_in_real_time
from tests.experiments.result import Experiment
from tests.experiments.retries import budget_table, retry_storm, sustained_failures
from tests.experiments.shedding_by_tier import (
    overload_and_recovery,
    shedding_by_pressure,
    shedding_by_priority,
)
from tests.experiments.sizing import sizing
from tests.experiments.slow_redis import slow_redis
from tests.experiments.small_parts import small_parts
from tests.experiments.storm_processes import storm_of_processes

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
}
#: With real processes, sockets and seconds.
REAL: dict[str, Experiment] = {
    "T2": one_bad_pod,
    "T6": local_capacity_in_real_time,
    "T14": slow_redis,
    "T18": small_parts,
    "T25": storm_of_processes,
    "T26": overload_in_real_time,
}
EVERY: dict[str, Experiment] = dict(
    sorted((SIMULATED | REAL).items(), key=lambda item: int(item[0].removeprefix("T")))
)
