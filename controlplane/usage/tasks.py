from controlplane.celery import app
from controlplane.usage import rollups


@app.task(name="usage.sample")
def sample() -> None:
    rollups.sample()


@app.task(name="usage.roll_up")
def roll_up() -> None:
    rollups.roll_up()


@app.task(name="usage.forget")
def forget() -> None:
    rollups.forget()
