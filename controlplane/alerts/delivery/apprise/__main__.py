"""``python -m controlplane.alerts.delivery.apprise [NETWORK ...]``: jobs on stdin, results on stdout.

The networks are those that a receiver may be in although they are not public. It ends with its input, and
when a job takes too long, also if the process that began it was killed.
"""

import resource
import signal
import sys
from ipaddress import ip_network

from msgspec import MsgspecError, json

from controlplane.alerts.delivery.apprise.guard import Guard
from controlplane.alerts.delivery.apprise.jobs import MAX_S, READY, Job, Result

#: A receiver that answers without end must not fill the memory of the container, 512 MB in
#: docker-compose.yml. The first bounds what the program allocates, the second also libraries that it maps.
_MAX_DATA = 256 * 1024 * 1024
_MAX_MEMORY = 768 * 1024 * 1024


def main() -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (_MAX_DATA, _MAX_DATA))
    resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY, _MAX_MEMORY))
    guard = Guard(ip_network(word) for word in sys.argv[1:])
    guard.install()
    # After the guard, so that nothing that it imports is outside of it.
    from controlplane.alerts.delivery.apprise.apprise_send import run

    sys.stdout.buffer.write(READY)
    sys.stdout.buffer.flush()
    for line in sys.stdin.buffer:
        # The usual action of this signal ends the process, in whatever call it is.
        signal.alarm(int(MAX_S))
        try:
            result = run(json.decode(line, type=Job), guard)
        except MsgspecError:
            result = Result(state="refused", said="The job cannot be read.")
        signal.alarm(0)
        sys.stdout.buffer.write(json.encode(result) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
