"""A broker that refuses writes for a while, as during a failover, ends no worker."""

from pathlib import Path
from typing import Any

import redis

from controlplane.celery import app
from controlplane.embedded.valkey import Valkey
from fuseboard.contract import keys
from tests.controlplane.monitoring.test_worker_metrics import WITHIN_S, worker_of
from tests.waiting import wait_until
from tools.demo.processes import Processes


def test_a_worker_goes_on_after_its_broker_was_read_only(
    production: str, limits: Any, tmp_path: Path
) -> None:
    (tmp_path / "broker").mkdir()
    broker, processes = Valkey(tmp_path / "broker"), Processes(tmp_path / "logs")
    broker.start()
    worker = worker_of("threads", tmp_path, FUSEBOARD_BROKER_URL=broker.url)
    worker.health, worker.port_variable = "/healthz", "FUSEBOARD_WORKER_METRICS_PORT"
    processes.add(worker)
    log = tmp_path / "logs" / "worker.log"
    try:
        processes.begin("worker")
        processes.wait_until_ready(["worker"])
        with redis.Redis.from_url(broker.url) as client:
            client.execute_command("REPLICAOF", "127.0.0.1", "1")
            wait_until(
                lambda: not worker.alive or b"read only replica" in log.read_bytes(),
                "the worker meets the refusal",
                within_s=WITHIN_S,
            )
            client.execute_command("REPLICAOF", "NO", "ONE")
        assert worker.alive, log.read_text()[-3_000:]
        # The head is missing, as after a loss of data in Redis.
        limits.delete(keys.config_head(production))
        with app.connection_for_write(url=broker.url) as connection:
            app.send_task("publishing.reconcile", queue="metrics-threads", connection=connection)
        wait_until(lambda: limits.exists(keys.config_head(production)), "the worker works", within_s=WITHIN_S)
        assert worker.alive
    finally:
        processes.stop("worker")
        broker.stop()
