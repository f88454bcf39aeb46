"""Alert rules about limits that follow their vendor, and about pods that contradict the others."""

from typing import Any

from controlplane.alerts.rules.rule import Headline, Rule, Scope, Subject, Threshold, Timing, jumping
from controlplane.phrases import percent
from controlplane.status.watched import FollowedLimit, OddPod

EACH_FOLLOWED = Scope[FollowedLimit](
    each=lambda status: status.facts.watched.followed,
    key=lambda one: f"{one.dependency}/{one.limit}",
    subject=lambda one: Subject(kind="breaker", name=one.dependency),
    about="dependency",
)
_EACH_ODD_POD = Scope[OddPod](
    each=lambda status: status.facts.watched.odd_pods,
    key=lambda one: f"{one.dependency}/{one.pod}",
    subject=lambda one: Subject(kind="server", name=one.pod),
)

VENDOR_LIMIT_RULES: tuple[Rule[Any], ...] = (
    Rule[FollowedLimit](
        key="learned-low",
        describes="a limit that follows its vendor is far below its configured number",
        # Part of the configured number.
        threshold=Threshold(warning=0.5, compare="less than", least=0.01),
        value=lambda one: one.share,
        timing=Timing(level=2, fires_after_s=600, resolves_after_s=120),
        needs="series",
        scope=EACH_FOLLOWED,
        text=lambda one: f"{one.dependency} allows {percent(one.share)} of {one.limit}",
        detail=lambda one: (
            f"Pods apply {one.number:,} instead of {one.configured:,}: the vendor refuses calls, states less,"
            " or is slow."
        ),
        headline=lambda one: Headline(one.dependency, "allows", "less than half of its limit"),
        weight=275,
        handled="Pods make as many calls as the vendor allows, and refuse the others.",
        runbook="learned-low",
    ),
    Rule[OddPod](
        key="vendor-429-pod",
        describes="a dependency refuses one pod far more often than the others",
        # Times the refused share of the other pods; at least a few calls of a thousand.
        threshold=jumping(
            warning=3.0,
            unit="times the share of the other pods",
            scale=1.0,
            compare="at least",
            least=1.5,
            most=200.0,
        ),
        value=lambda one: one.times,
        timing=Timing(level=1, fires_after_s=60, resolves_after_s=300),
        needs="series",
        scope=_EACH_ODD_POD,
        pods=lambda one: (one.pod,),
        text=lambda one: f"{one.dependency} refuses {one.pod} more often than the other pods",
        detail=lambda one: (
            f"{one.refused:,} of its {one.sent:,} calls of 10 minutes ({percent(one.share)}), and"
            f" {percent(one.others_share)} of those of {one.others} others. It may use another key, or report"
            " what is not so. It alone moves no limit."
        ),
        headline=lambda one: Headline(one.pod, "is", f"refused by {one.dependency} more often than others"),
        weight=487,
        runbook="vendor-429-pod",
    ),
)
