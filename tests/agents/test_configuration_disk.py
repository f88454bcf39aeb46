"""The last good configuration on disk: read exactly as written, or not at all."""

import os
import stat
from hashlib import sha256
from pathlib import Path

import msgspec
import pytest

from fuseboard.configuration import startup
from fuseboard.configuration.checked_config import ConfigError
from fuseboard.configuration.current_configuration import Configuration
from fuseboard.configuration.disk import FORMAT, Disk, DiskError, SavedConfig, read_bootstrap
from fuseboard.configuration.startup import RETRY_WRITE_S, DiskWriter, apply_bootstrap, apply_from_disk
from fuseboard.contract.policy import ConfigHead, TenantRecord, encode_policy, hash_of
from fuseboard.contract.words import ConfigSource
from tests.agents.test_configuration import POLICY, offer

DOCUMENT = encode_policy(POLICY)
KEPT = SavedConfig(
    environment="production",
    head=ConfigHead(epoch=1, revision=42, hash=hash_of(DOCUMENT)),
    policy=msgspec.Raw(DOCUMENT),
    tenants={"acme": TenantRecord(tier="pro"), "ghost": None},
    live_servers=18,
)


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path / "state", environment="production", service="web")


def signed(body: bytes) -> bytes:
    return f"{FORMAT} {len(body)} {sha256(body).hexdigest()}\n".encode() + body


async def test_a_restarted_pod_decides_as_before_with_everything_down(disk: Disk):
    before = Configuration(environment="production")
    before.want("acme")
    before.apply(offer(revision=42, tenants={"acme": TenantRecord(tier="pro")}))
    before.live_servers = 18
    keeper = DiskWriter(before, disk)
    kept = keeper.due()
    assert kept is not None
    keeper.write(kept)
    assert keeper.due() is None

    after = Configuration(environment="production")
    await apply_from_disk(after, disk, timeout_s=5)
    assert after.snapshot.quotas_of("acme") == before.snapshot.quotas_of("acme")
    assert after.live_servers == 18
    assert (after.applied.revision, after.applied.source) == (42, ConfigSource.DISK)


def no_space(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_copy_that_was_not_written_stays_due(disk: Disk, monkeypatch: pytest.MonkeyPatch):
    """A busy loop answered too late, and the pod had no copy until the next edit."""
    now = 1_000.0
    monkeypatch.setattr(startup, "monotonic", lambda: now)
    configuration = Configuration(environment="production")
    configuration.apply(offer(revision=42))
    keeper = DiskWriter(configuration, disk)
    assert keeper.due() is not None
    kept = keeper.due()
    assert kept is not None, "the thread that asked before has gone on"

    with monkeypatch.context() as full:
        full.setattr("fuseboard.configuration.disk.replace_file", no_space)
        keeper.write(kept)
    assert keeper.due() is None, "a disk that fails is not tried at each heartbeat"
    now += RETRY_WRITE_S
    kept = keeper.due()
    assert kept is not None
    keeper.write(kept)
    assert keeper.due() is None
    assert disk.read() is not None

    configuration.live_servers = 7
    assert keeper.due() is None, "servers alone are written later"
    configuration.apply(offer(revision=43))
    assert keeper.due() is not None


def test_the_file_is_for_its_owner_alone_and_leaves_nothing_beside_it(disk: Disk):
    assert disk.write(KEPT)
    assert disk.write(KEPT)
    assert stat.S_IMODE(disk.path.stat().st_mode) == 0o600
    assert os.listdir(disk.path.parent) == [disk.path.name]


def test_each_environment_and_service_has_its_own_file(tmp_path: Path):
    pairs = [("a", "b.c"), ("a.b", "c"), ("a", "b"), ("b", "a")]
    names = {Disk(tmp_path, environment=one, service=two).path.name for one, two in pairs}
    assert len(names) == 4


def test_no_file_is_no_error(disk: Disk):
    assert disk.read() is None


def test_a_file_cut_anywhere_is_refused_whole(disk: Disk):
    disk.write(KEPT)
    content = disk.path.read_bytes()
    for length in range(0, len(content), 23):
        disk.path.write_bytes(content[:length])
        with pytest.raises(DiskError):
            disk.read()


def test_a_file_with_any_bit_flipped_is_refused_whole(disk: Disk):
    disk.write(KEPT)
    content = disk.path.read_bytes()
    for position in range(0, len(content), 11):
        damaged = bytearray(content)
        damaged[position] ^= 0x10
        disk.path.write_bytes(bytes(damaged))
        with pytest.raises(DiskError):
            disk.read()


@pytest.mark.parametrize(
    "content",
    [
        b"fuseboard-config-0 2 abc\n{}",
        signed(b"{}"),
        signed(b"[" * 5000),
        signed(b"\xff"),
        signed(msgspec.json.encode(msgspec.structs.replace(KEPT, environment="staging"))),
        signed(
            msgspec.json.encode(msgspec.structs.replace(KEPT, head=ConfigHead(epoch=1, revision=1, hash="x")))
        ),
    ],
)
async def test_an_older_or_foreign_file_is_refused_and_the_pod_starts_without(disk: Disk, content: bytes):
    disk.path.parent.mkdir()
    disk.path.write_bytes(content)
    with pytest.raises((DiskError, ConfigError)):
        disk.read()
    configuration = Configuration(environment="production")
    await apply_from_disk(configuration, disk, timeout_s=5)
    assert configuration.applied.source is ConfigSource.BUILT_IN


def test_a_directory_that_cannot_be_written_is_counted_and_logged_once(tmp_path: Path, caplog):
    (tmp_path / "state").write_text("a file where the directory should be")
    disk = Disk(tmp_path / "state", environment="production", service="web")
    assert not disk.write(KEPT)
    assert not disk.write(KEPT)
    assert disk.failures == 2
    assert len([record for record in caplog.records if "not_kept" in record.message]) == 1


def test_a_full_disk_keeps_the_old_file(disk: Disk, monkeypatch: pytest.MonkeyPatch):
    disk.write(KEPT)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert not disk.write(msgspec.structs.replace(KEPT, live_servers=1))
    found = disk.read()
    assert found is not None
    assert found[1] == 18
    assert os.listdir(disk.path.parent) == [disk.path.name]


async def test_a_file_that_hangs_delays_the_start_by_its_bound_only(disk: Disk):
    disk.path.parent.mkdir()
    os.mkfifo(disk.path)
    configuration = Configuration(environment="production")
    await apply_from_disk(configuration, disk, timeout_s=0.05)
    assert configuration.applied.source is ConfigSource.BUILT_IN
    with disk.path.open("wb"):
        """Let the reading thread go."""


class TestBootstrap:
    async def test_it_decides_when_nothing_else_answered(self, tmp_path: Path):
        path = tmp_path / "bootstrap.json"
        path.write_bytes(b'{"policy":' + DOCUMENT + b',"tenants":{"acme":{"tier":"pro"}}}')
        configuration = Configuration(environment="production")
        await apply_bootstrap(configuration, path, timeout_s=5)
        assert configuration.snapshot.quotas_of("acme").tier == "pro"
        assert configuration.applied.source is ConfigSource.BOOTSTRAP

    async def test_anything_published_replaces_it_and_it_replaces_nothing(self, tmp_path: Path):
        path = tmp_path / "bootstrap.json"
        path.write_bytes(b'{"policy":' + DOCUMENT + b"}")
        configuration = Configuration(environment="production")
        await apply_bootstrap(configuration, path, timeout_s=5)
        configuration.apply(offer(revision=1))
        await apply_bootstrap(configuration, path, timeout_s=5)
        assert configuration.applied.source is ConfigSource.HTTP

    @pytest.mark.parametrize("content", [b"", b"policy: {}", b"{}", b'{"policy":{}}', b'{"policy":null}'])
    async def test_a_bad_one_is_refused_whole(self, tmp_path: Path, content: bytes):
        path = tmp_path / "bootstrap.json"
        path.write_bytes(content)
        with pytest.raises((DiskError, ConfigError)):
            read_bootstrap(path, environment="production")
        configuration = Configuration(environment="production")
        await apply_bootstrap(configuration, path, timeout_s=5)
        assert configuration.applied.source is ConfigSource.BUILT_IN
