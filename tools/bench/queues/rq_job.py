"""The job of ``run_rq``: rq imports it by its name."""


def run(number: str) -> None:
    """Nothing: the queue itself is measured."""
