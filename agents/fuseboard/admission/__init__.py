"""The heart: decides every call, with Redis or without."""

from fuseboard.admission.admission import Admission

__all__ = ["Admission"]
