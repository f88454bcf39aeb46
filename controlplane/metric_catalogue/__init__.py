"""Every metric of ``/metrics``: one entry each, from which the exporters and the documents are made.

To add a metric, add an entry to the module of the process that exports it, use it there, and run
``manage.py write_monitoring``.
"""
