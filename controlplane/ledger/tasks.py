from controlplane.celery import app
from controlplane.ledger import edits


@app.task(name="ledger.tidy")
def tidy() -> None:
    edits.tidy()
