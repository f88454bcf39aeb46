from django.http import HttpRequest
from ninja import Router

from controlplane.api.schemas import Environment, ServerOut
from controlplane.fleet import live
from controlplane.fleet.models import Server
from controlplane.policies.document import environment_of

router = Router()


@router.get("", response=list[ServerOut])
def list_servers(request: HttpRequest, environment: Environment) -> list[Server]:
    """What each server said last, and whether it is still there."""
    return live.servers(environment_of(environment).slug)
