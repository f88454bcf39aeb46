from controlplane.celery import app
from controlplane.refusals import top_lists


@app.task(name="refusals.roll_up")
def roll_up() -> None:
    top_lists.roll_up()


@app.task(name="refusals.forget")
def forget() -> None:
    top_lists.forget()
