"""What a pod tells the control plane, and how it hears back.

* ``counters``: everything counted since the process started; called by the event loop.
* ``loop_port``: the one door between that thread and the event loop.
* ``connection``: one HTTP exchange with bounds on its time and size.
* ``beat``: one beat, encoded, sent and its answer judged.
* ``sync``: the thread that beats, and hands back what it is told.
"""
