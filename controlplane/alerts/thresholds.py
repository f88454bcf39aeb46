"""Where a figure becomes an alert. Those of pods and breakers are in ``controlplane.status``."""

#: Share of requests answered 429 above which it is more than one greedy tenant.
REFUSED_SHARE = 0.02
#: Share of pods missing from the rates above which it is more than pods that changed their gateway.
UNCOUNTED_SHARE = 0.1
#: A change this late is applied neither by the worker nor by a web process in its place.
OVERDUE_S = 30.0
