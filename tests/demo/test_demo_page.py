"""The page about the demo names what the demo does."""

import re
from pathlib import Path

from tools.demo.model_scenario import ASSISTANT, MODELS
from tools.demo.scenario import PODS
from tools.demo.story import BASE, MORE

PAGE = (Path(__file__).resolve().parents[2] / "docs/demo.md").read_text()


def names_below(header: str) -> list[str]:
    """The names in the first column of the table that begins with this header."""
    table = PAGE.partition(f"| {header}")[2].partition("\n\n")[0]
    return [
        name for line in table.splitlines()[2:] for name in re.findall(r"`([a-z0-9-]+)`", line.split("|")[1])
    ]


def test_each_checkpoint_is_in_its_table():
    assert sorted(names_below("`CHECK=1`")) == sorted(one.name for one in BASE)
    assert sorted(names_below("`CHECK=all`")) == sorted(one.name for one in MORE)


def test_each_pod_is_named():
    assert [name for name in (*PODS, ASSISTANT) if f"`{name}`" not in PAGE] == []
    assert len(MODELS) == 5, "as the page says"
