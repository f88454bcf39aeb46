"""Documents of the REST API: what comes in, what goes out, and examples.

pydantic builds their validators when they are first used, not at the start of web.
"""

from datetime import UTC, datetime
from typing import Annotated, Any, Self

from ninja import Schema
from ninja.params.models import ParamModel
from ninja.schema import DjangoGetter
from pydantic import BaseModel, BeforeValidator, ModelWrapValidatorHandler, ValidationInfo, model_validator

# Before any schema is defined, and also for those that ninja makes of the parameters of an operation.
_bases: list[type[BaseModel]] = [Schema, ParamModel, *ParamModel.__subclasses__()]
for _base in _bases:
    _base.model_config["defer_build"] = True


def _from_unix(at: Any) -> Any:
    return datetime.fromtimestamp(at, UTC) if isinstance(at, int | float) else at


#: A document has the date of a number of Unix seconds.
UnixTime = Annotated[datetime, BeforeValidator(_from_unix)]


class FromObject(Schema):
    """A document of an object, such as a row. Methods ``resolve_...`` read what has another form there."""

    @model_validator(mode="wrap")
    @classmethod
    def _run_root_validator(
        cls, values: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo
    ) -> Self:
        """Replace ninja's, which would call the methods also with a finished document and a stored reply."""
        finished = isinstance(values, cls | dict)
        return handler(values if finished else DjangoGetter(values, cls, info.context))
