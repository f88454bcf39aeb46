"""CPU and memory of a pod, from files as kernels and container runtimes write them."""

from pathlib import Path

import pytest

from fuseboard.protection.cgroup import ResourceReader

STAT_2 = """usage_usec {used}
user_usec 100
system_usec 50
nr_periods {periods}
nr_throttled {throttled}
throttled_usec 90210
"""
STAT_1 = "nr_periods {periods}\nnr_throttled {throttled}\nthrottled_time 90210000\n"
MEMORY_STAT = """anon 734003200
file 419430400
kernel_stack 327680
inactive_file 314572800
total_inactive_file 314572800
"""
#: Of a pod on a node with version 2: its own group is the root of what it sees.
MOUNT_2 = "1021 1015 0:28 / /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw,nsdelegate\n"
MOUNTS_1 = """36 24 0:31 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs ro,mode=755
41 36 0:36 /kubepods/pod7 /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct
42 36 0:37 /kubepods/pod7 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory
"""
PATHS_1 = "12:memory:/kubepods/pod7\n4:cpu,cpuacct:/kubepods/pod7\n1:name=systemd:/kubepods/pod7\n"


class Machine:
    """A folder with the files of ``/proc`` and ``/sys`` of one process."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, path: str, text: object) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        # In place, as the kernel does: readers keep the file open.
        with file.open("r+" if file.exists() else "w") as stream:
            stream.write(f"{text}")
            stream.truncate()

    def version_2(self, path: str = "/", *, folder: str = "") -> str:
        self.write("proc/self/cgroup", f"0::{path}\n")
        self.write("proc/self/mountinfo", MOUNT_2)
        return f"sys/fs/cgroup{folder}"

    def version_1(self) -> None:
        self.write("proc/self/cgroup", PATHS_1)
        self.write("proc/self/mountinfo", MOUNTS_1)

    def group_2(self, folder: str, *, cpu_max: str = "max 100000", memory_max: str = "max") -> None:
        self.write(f"{folder}/cpu.stat", STAT_2.format(used=1_000_000, periods=100, throttled=5))
        self.write(f"{folder}/cpu.max", f"{cpu_max}\n")
        self.write(f"{folder}/memory.current", "943718400\n")
        self.write(f"{folder}/memory.stat", MEMORY_STAT)
        self.write(f"{folder}/memory.max", f"{memory_max}\n")
        self.write(f"{folder}/memory.high", "max\n")

    def group_1(self, *, quota: int = -1, memory: int = 2**63 - 4096) -> None:
        cpu, of_memory = "sys/fs/cgroup/cpu,cpuacct", "sys/fs/cgroup/memory"
        self.write(f"{cpu}/cpuacct.usage", "5000000000\n")
        self.write(f"{cpu}/cpu.stat", STAT_1.format(periods=100, throttled=5))
        self.write(f"{cpu}/cpu.cfs_quota_us", f"{quota}\n")
        self.write(f"{cpu}/cpu.cfs_period_us", "100000\n")
        self.write(f"{of_memory}/memory.usage_in_bytes", "943718400\n")
        self.write(f"{of_memory}/memory.stat", MEMORY_STAT)
        self.write(f"{of_memory}/memory.limit_in_bytes", f"{memory}\n")

    def reader(self, *, process_s: float = 0.0) -> ResourceReader:
        return ResourceReader(self.root, cores=lambda: 4, process_s=lambda: process_s, host_cores=8)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_version_2_with_limits(machine: Machine) -> None:
    group = machine.version_2()
    machine.group_2(group, cpu_max="200000 100000", memory_max="1048576000")
    machine.write(f"{group}/cpu.pressure", "some avg10=12.50 avg60=1.00 avg300=0.10 total=9\n")
    reader = machine.reader()
    assert reader.read(10.0).cpu is None  # one reading is no rate
    machine.write(f"{group}/cpu.stat", STAT_2.format(used=4_000_000, periods=140, throttled=15))
    usage = reader.read(12.0)
    assert (usage.cpu, usage.cores) == (pytest.approx(3 / (2 * 2)), 2.0)
    assert usage.throttled == pytest.approx(10 / 40)
    # Without what the kernel takes back first: the page cache is not pressure.
    assert usage.memory == pytest.approx((943_718_400 - 314_572_800) / 1_048_576_000)
    assert (usage.cpu_from, usage.memory_from, usage.stalled) == ("cgroup2", "cgroup2", 0.125)


def test_the_smallest_limit_of_all_groups_above_counts(machine: Machine) -> None:
    root = machine.version_2("/pods.slice/pod7/app")
    machine.group_2(f"{root}/pods.slice/pod7/app", cpu_max="400000 100000", memory_max="max")
    machine.write(f"{root}/pods.slice/pod7/cpu.max", "50000 100000\n")
    machine.write(f"{root}/pods.slice/pod7/memory.high", "700000000\n")
    machine.write(f"{root}/pods.slice/pod7/memory.max", "900000000\n")
    machine.write(f"{root}/pods.slice/memory.max", "max\n")
    usage = machine.reader().read(1.0)
    assert usage.cores == 0.5
    assert usage.memory == pytest.approx((943_718_400 - 314_572_800) / 700_000_000)


def test_without_limits_there_is_no_score_of_memory(machine: Machine) -> None:
    group = machine.version_2()
    machine.group_2(group)
    reader = machine.reader()
    reader.read(0.0)
    machine.write(f"{group}/cpu.stat", STAT_2.format(used=3_000_000, periods=0, throttled=0))
    usage = reader.read(1.0)
    assert (usage.cpu, usage.cores) == (pytest.approx(2 / 4), 4.0)  # of the CPUs that it may run on
    assert (usage.memory, usage.throttled) == (None, None)


def test_a_limit_above_the_cpus_is_none(machine: Machine) -> None:
    group = machine.version_2()
    machine.group_2(group, cpu_max="1600000 100000")
    assert machine.reader().read(0.0).cores == 4.0


def test_a_limit_that_changes_applies(machine: Machine) -> None:
    group = machine.version_2()
    machine.group_2(group, cpu_max="200000 100000")
    reader = machine.reader()
    assert reader.read(0.0).cores == 2.0
    machine.write(f"{group}/cpu.max", "50000 100000\n")
    assert reader.read(1.0).cores == 0.5


def test_version_1_with_limits(machine: Machine) -> None:
    machine.version_1()
    machine.group_1(quota=150_000, memory=1_048_576_000)
    reader = machine.reader()
    reader.read(0.0)
    machine.write("sys/fs/cgroup/cpu,cpuacct/cpuacct.usage", "8000000000\n")
    machine.write("sys/fs/cgroup/cpu,cpuacct/cpu.stat", STAT_1.format(periods=120, throttled=15))
    usage = reader.read(2.0)
    assert (usage.cpu, usage.cores) == (pytest.approx(3 / (2 * 1.5)), 1.5)
    assert usage.throttled == pytest.approx(0.5)
    assert usage.memory == pytest.approx(0.6)
    assert (usage.cpu_from, usage.memory_from) == ("cgroup1", "cgroup1")


def test_version_1_writes_no_limit_as_minus_1(machine: Machine) -> None:
    machine.version_1()
    machine.group_1()
    usage = machine.reader().read(0.0)
    assert (usage.cores, usage.memory, usage.cpu_from) == (4.0, None, "cgroup1")


def test_a_hybrid_host_is_read_by_controller(machine: Machine) -> None:
    machine.write(
        "proc/self/cgroup", "5:memory:/job/9\n4:name=systemd:/\n2:cpuacct:/\n1:cpu:/\n0::/system.slice\n"
    )
    machine.write(
        "proc/self/mountinfo",
        "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"
        "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
        "33 31 0:30 / /sys/fs/cgroup/cpuacct rw - cgroup cgroup rw,cpuacct\n"
        "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
    )
    machine.write("sys/fs/cgroup/unified/cgroup.procs", "")
    machine.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n")
    machine.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
    machine.write("sys/fs/cgroup/cpuacct/cpuacct.usage", "123456789\n")
    machine.write("sys/fs/cgroup/memory/job/9/memory.usage_in_bytes", "600000000\n")
    machine.write("sys/fs/cgroup/memory/job/9/memory.stat", "total_inactive_file 100000000\n")
    machine.write("sys/fs/cgroup/memory/job/9/memory.limit_in_bytes", f"{2**63 - 4096}\n")
    machine.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "1000000000\n")
    usage = machine.reader().read(0.0)
    # In no group and without a limit: the root counts every process of the host.
    assert (usage.cpu_from, usage.memory_from) == ("process", "cgroup1")
    assert usage.memory == pytest.approx(0.5)


def test_without_groups_the_process_is_measured(machine: Machine) -> None:
    used = 1.0
    reader = ResourceReader(machine.root, cores=lambda: 2, process_s=lambda: used, host_cores=2)
    reader.read(0.0)
    used = 2.5
    usage = reader.read(1.0)
    assert (usage.cpu, usage.cpu_from) == (pytest.approx(0.75), "process")
    assert (usage.memory, usage.memory_from, usage.stalled) == (None, "none", None)


def test_the_root_of_a_host_is_not_the_pod(machine: Machine) -> None:
    group = machine.version_2()
    machine.write(f"{group}/cpu.stat", STAT_2.format(used=1, periods=0, throttled=0))
    assert machine.reader().read(0.0).cpu_from == "process"


@pytest.mark.parametrize("used", [999_999, 1_000_000 + 20_000_000])
def test_a_counter_that_goes_back_or_jumps_is_no_evidence(machine: Machine, used: int) -> None:
    group = machine.version_2()
    machine.group_2(group, cpu_max="100000 100000")
    reader = machine.reader()
    reader.read(0.0)
    machine.write(f"{group}/cpu.stat", STAT_2.format(used=used, periods=1, throttled=0))
    usage = reader.read(1.0)
    assert (usage.cpu, usage.throttled) == (None, None)
    machine.write(f"{group}/cpu.stat", STAT_2.format(used=used + 500_000, periods=11, throttled=0))
    assert reader.read(2.0).cpu == pytest.approx(0.5)


def test_a_group_that_disappears_or_makes_no_sense_is_unknown(machine: Machine) -> None:
    group = machine.version_2()
    machine.group_2(group, memory_max="1048576000")
    reader = machine.reader()
    for file in ("cpu.stat", "memory.current"):
        machine.write(f"{group}/{file}", "?\n")
    usage = reader.read(0.0)
    assert (usage.cpu, usage.memory) == (None, None)
    reader.close()
    reader.close()


def test_the_machine_that_runs_the_tests_can_be_read() -> None:
    reader = ResourceReader()
    try:
        reader.read(0.0)
        usage = reader.read(3600.0)
        assert usage.cpu is None or 0 <= usage.cpu < 1.1
        assert usage.memory is None or 0 <= usage.memory < 2
        assert usage.cores > 0
    finally:
        reader.close()
