"""Rules for descriptors of Envoy, as the file of envoyproxy/ratelimit."""

from typing import Annotated

from ninja import Schema
from pydantic import Field

from controlplane.api.schemas.edits_in import NewOrVersion, ReasonIn
from fuseboard.contract.descriptor_file import MAX_FILE
from fuseboard.contract.descriptors import DOMAIN_PATTERN, MAX_DOMAIN_NAME

Domain = Annotated[str, Field(pattern=DOMAIN_PATTERN, max_length=MAX_DOMAIN_NAME)]


class DescriptorsIn(ReasonIn):
    file: Annotated[
        str, Field(min_length=1, max_length=MAX_FILE, description="The text of the file of this domain.")
    ]
    expected_version: NewOrVersion = None


class DomainOut(Schema):
    domain: str
    #: On all levels.
    rules: int
    version: int


class DescriptorsOut(DomainOut):
    #: The text, with its comments.
    file: str
