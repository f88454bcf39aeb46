from django.http import HttpRequest
from ninja import Router

from controlplane.api.http.auth import actor_of, needs
from controlplane.api.schemas.edits_in import Environment, Slug
from controlplane.api.schemas.learned import DeclineIn, LearnedOut, SuggestionOut
from controlplane.errors import find
from controlplane.policies.document import environment_of
from controlplane.policies.models import Dependency
from controlplane.suggestions.edits import decline_suggestion
from controlplane.suggestions.reading import Learned, read_learned

router = Router()


@router.get("/{dependency}/learned", response=LearnedOut)
def get_learned(request: HttpRequest, environment: Environment, dependency: Slug) -> Learned:
    """Read what the vendor's answers state about its limits, what pods apply, and what is suggested.

    One pod alone suggests nothing, and no suggestion changes a limit.
    """
    rows = Dependency.objects.filter(environment=environment_of(environment))
    find(rows, "dependency", name=dependency)
    return read_learned(environment, dependency)


@router.post("/{dependency}/learned/decline", response=SuggestionOut, auth=needs("edit_breaker_policy"))
def decline(
    request: HttpRequest, environment: Environment, dependency: Slug, values: DeclineIn
) -> SuggestionOut:
    """Decline a suggestion. It comes back when its number changes by 10 %."""
    row = decline_suggestion(
        environment=environment, dependency=dependency, actor=actor_of(request), **values.model_dump()
    )
    return SuggestionOut.model_validate(row)
