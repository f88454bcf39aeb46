"""Suggestions about a limit of a vendor, one of them declined, for pictures of a demo.

A suggestion needs two pods that hear the number of a vendor for minutes. The demo has one.
"""

from datetime import timedelta

from django.utils import timezone

from controlplane.policies.models import VendorLimit
from controlplane.suggestions.edits import decline_suggestion
from controlplane.suggestions.models import Suggestion, SuggestionKind
from tools.demo.model_scenario import OPENAI_MINI
from tools.demo.seed import DIRECTOR, ENVIRONMENT

LIMIT = "calls-per-minute"


def put_suggestions() -> None:
    """For an hour, on the page of the pool."""
    now = timezone.now()
    found = {
        SuggestionKind.TOO_LOW: (
            600,
            "In 1,240 answers to 2 pods since 09:12 UTC the vendor said 600 calls per min."
            " Configured: 240 calls per min. From 09:40 to 09:50 UTC limits of ours refused 60 calls of 2"
            " pods. You use at most 40 % of what you may.",
        ),
        SuggestionKind.OTHERS: (
            27,
            "From 09:40 to 09:50 UTC others used 640 of the 2,400 calls that this limit allows (26.7 %):"
            " the vendor had that much less left than our counter, in answers to 2 pods.",
        ),
    }
    limit = VendorLimit.objects.get(dependency__name=OPENAI_MINI, name=LIMIT)
    about = {"configured": limit.limit, "algorithm": limit.algorithm, "window_s": limit.window_s}
    for kind, (number, evidence) in found.items():
        Suggestion.objects.update_or_create(
            environment=ENVIRONMENT,
            dependency=OPENAI_MINI,
            limit=LIMIT,
            kind=kind,
            defaults={
                "number": number,
                "evidence": evidence,
                "first_at": now - timedelta(hours=2),
                "last_at": now,
                "declined_number": None,
                **about,
            },
        )
    decline_suggestion(
        environment=ENVIRONMENT,
        dependency=OPENAI_MINI,
        limit=LIMIT,
        kind=SuggestionKind.OTHERS,
        reason="The batch of the partner ends in May.",
        actor=DIRECTOR,
    )
