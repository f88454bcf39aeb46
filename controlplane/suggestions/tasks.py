from controlplane.celery import app
from controlplane.suggestions import edits, following


@app.task(name="suggestions.look")
def look() -> None:
    edits.look_for_suggestions()


@app.task(name="suggestions.note_following")
def note_following() -> None:
    following.note_following()
