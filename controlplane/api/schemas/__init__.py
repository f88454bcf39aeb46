"""Documents of the REST API: what comes in, what goes out, and examples.

pydantic builds their validators when they are first used, not at the start of web.
"""

from datetime import UTC, datetime
from typing import Annotated, Any

from django.db.models import Manager
from ninja import Schema
from ninja.params.models import ParamModel
from pydantic import BaseModel, BeforeValidator, ConfigDict, model_validator

# Before any schema is defined, and also for those that ninja makes of the parameters of an operation.
_bases: list[type[BaseModel]] = [Schema, ParamModel, *ParamModel.__subclasses__()]
for _base in _bases:
    _base.model_config["defer_build"] = True


def _from_unix(at: Any) -> Any:
    return datetime.fromtimestamp(at, UTC) if isinstance(at, int | float) else at


#: A moment that the object has as Unix seconds.
UnixTime = Annotated[datetime, BeforeValidator(_from_unix)]


class FromObject(BaseModel):
    """A document of an object, such as a row.

    Its methods ``resolve_...`` make the fields that the object has in another form. They do not run for a
    finished document or a stored reply. ninja's ``Schema`` runs its methods of this kind for these, too.
    """

    model_config = ConfigDict(defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _read(cls, values: Any) -> Any:
        if isinstance(values, (cls, dict)):
            return values
        made = {name: make for name in cls.model_fields if (make := getattr(cls, f"resolve_{name}", None))}
        same = [name for name in cls.model_fields if name not in made and hasattr(values, name)]
        found = {name: getattr(values, name) for name in same}
        found |= {name: make(values) for name, make in made.items()}
        return {name: one.all() if isinstance(one, Manager) else one for name, one in found.items()}
