"""Gateways of one machine share FUSEBOARD_ONCALL_DIR: each has a folder of its own there."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from controlplane.gateway.emergency.folder import GatewayFolder

Begin = Callable[[str], GatewayFolder]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    with ExitStack() as begun:

        def one(gateway: str) -> GatewayFolder:
            folder = GatewayFolder(tmp_path / "oncall", gateway)
            begun.callback(folder.release)
            return folder

        yield one


def test_a_gateway_that_begins_again_has_its_own_folder(begin: Begin) -> None:
    first = begin("one:8001")
    (first.path / "journal.json").write_text("{}")
    first.release()
    another = begin("one:8001")
    assert another.path == first.path == first.path.parent / "one_8001"
    assert (another.path / "journal.json").read_text() == "{}"


def test_a_container_with_a_new_name_takes_what_the_one_before_has_left(begin: Begin) -> None:
    before, runs = begin("3f2a:8001"), begin("77bc:8001")
    before.release()
    anew = begin("9d01:8001")
    assert anew.path == before.path
    # Both run: a third one has its own.
    third = begin("aa00:8001")
    assert third.path.name == "aa00_8001"
    # The first name comes back, and its folder is taken.
    back = begin("3f2a:8001")
    assert len({folder.path for folder in (runs, anew, third, back)}) == 4


def test_only_this_user_reads_it(begin: Begin) -> None:
    folder = begin("one:8001")
    for path in (folder.path, folder.path.parent, folder.path / "lock"):
        assert path.stat().st_mode & 0o077 == 0, path


def test_a_place_that_cannot_be_written_stops_no_gateway(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    folder = GatewayFolder(tmp_path / "file", "one:8001")
    assert folder.path == tmp_path / "file" / "one_8001"
    folder.release()


def test_a_folder_that_this_user_cannot_lock_is_passed_over(begin: Begin, tmp_path: Path) -> None:
    """A gateway that took it would run without a lock."""
    (tmp_path / "oncall" / "0" / "lock").mkdir(parents=True)
    first, second = begin("one:8001"), begin("two:8001")
    assert (first.path.name, second.path.name) == ("one_8001", "two_8001")
    # A third one does not find it left.
    first.path.rename(tmp_path / "oncall" / "1")
    assert begin("one:8001").path.name == "one_8001"


def test_a_folder_of_another_program_is_not_taken(begin: Begin, tmp_path: Path) -> None:
    """Such as lost+found of a volume, which root could lock."""
    other = tmp_path / "oncall" / "lost+found"
    other.mkdir(parents=True)
    (other / "#12").write_text("found")
    (tmp_path / "oncall" / "a file").write_text("")
    first, second = begin("one:8001"), begin("two:8001")
    assert (first.path.name, second.path.name) == ("one_8001", "two_8001")
    assert [path.name for path in other.iterdir()] == ["#12"]


@pytest.mark.parametrize("left", ["journal.json", "production.plan", "lock"])
def test_a_folder_with_what_a_gateway_writes_is_taken(begin: Begin, tmp_path: Path, left: str) -> None:
    """Release 0.1.0 makes no lock."""
    folder = tmp_path / "oncall" / "before"
    folder.mkdir(parents=True)
    (folder / left).write_text("")
    assert begin("one:8001").path == folder
