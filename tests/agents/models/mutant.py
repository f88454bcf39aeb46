"""A bug that somebody could write tomorrow: one edit of a script, which must be noticed."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    name: str
    script: str
    old: str
    new: str
