"""The reports of a pod to the control plane, and its answers.

* ``counters``: everything counted since the process started; used on the event loop.
* ``loop_port``: the only way between the sync thread and the event loop.
* ``connection``: one HTTP exchange, bounded in time and size.
* ``beat``: one heartbeat: encoded, sent, and its answer checked.
* ``sync``: the thread that sends heartbeats, and passes on the answers.
"""
