"""The page that ``make release`` follows has the commands that it follows, in their order."""

from tools.release.walk import blocks


def test_the_page_has_the_blocks_of_the_walk():
    install, start, pod = blocks()
    lines = install.splitlines()
    assert lines[0].startswith("python3 -m venv venv")
    assert [line.split()[1] for line in lines if line.startswith("fuseboard-server ")] == [
        "migrate",
        "create_environment",
        "first_admin",
    ]
    assert start.split() == [
        "fuseboard-server",
        "web",
        "fuseboard-server",
        "gateway",
        "fuseboard-server",
        "worker",
    ]
    assert pod.splitlines()[-1] == "pip install dist/fuseboard-*.whl"
