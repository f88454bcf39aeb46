"""Rules for the descriptors that Envoy sends: one file for each domain."""

from django.http import HttpRequest, HttpResponse
from ninja import Router

from controlplane.api.http.auth import needs
from controlplane.api.http.versions import RemovalInQuery, edit_arguments, find_version
from controlplane.api.schemas.configuration_out import RevisionOut
from controlplane.api.schemas.descriptors import DescriptorsIn, DescriptorsOut, Domain, DomainOut
from controlplane.api.schemas.edits_in import Environment
from controlplane.editing import edits
from controlplane.policies.descriptors import rules_in
from controlplane.policies.document import environment_of

router = Router()


@router.get("", response=list[DomainOut])
def list_domains(request: HttpRequest, environment: Environment) -> list[DomainOut]:
    rows = environment_of(environment).descriptor_files.order_by("name")
    return [DomainOut(domain=row.name, rules=rules_in(row.file), version=row.version) for row in rows]


@router.get("/{path:domain}", response=DescriptorsOut)
def get_descriptors(
    request: HttpRequest, response: HttpResponse, environment: Environment, domain: Domain
) -> DescriptorsOut:
    row = find_version(response, environment_of(environment).descriptor_files.all(), "domain", name=domain)
    return DescriptorsOut(domain=row.name, rules=rules_in(row.file), version=row.version, file=row.file)


@router.put("/{path:domain}", response=RevisionOut, auth=needs("edit_quota"))
def set_descriptors(
    request: HttpRequest, environment: Environment, domain: Domain, values: DescriptorsIn
) -> RevisionOut:
    """Add the rules for a domain, on version 0, or replace them. 422 has every problem of the file, with its
    line.
    """
    revision = edits.set_descriptors(
        environment=environment, domain=domain, **edit_arguments(request, values)
    )
    return RevisionOut(revision=revision)


@router.delete("/{path:domain}", response=RevisionOut, auth=needs("edit_quota"))
def remove_descriptors(
    request: HttpRequest, environment: Environment, domain: Domain, removal: RemovalInQuery
) -> RevisionOut:
    """Delete the rules for a domain. What Envoy asks for it is then allowed, and not counted."""
    revision = edits.remove_descriptors(
        environment=environment, domain=domain, **edit_arguments(request, removal)
    )
    return RevisionOut(revision=revision)
