"""Documents of the REST API: what comes in, what goes out, and examples.

pydantic builds their validators when they are first used, not at the start of web.
"""

from ninja import Schema
from ninja.params.models import ParamModel
from pydantic import BaseModel

# Before any schema is defined, and also for those that ninja makes of the parameters of an operation.
_bases: list[type[BaseModel]] = [Schema, ParamModel, *ParamModel.__subclasses__()]
for _base in _bases:
    _base.model_config["defer_build"] = True
