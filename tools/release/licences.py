"""The licences of what is installed with the control plane: allowed, or allowed and named in its NOTICE."""

import re
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path

#: Licences that ask for no more than their text. Names of SPDX, and the older ones of classifiers.
ALLOWED = frozenset(
    {
        "0BSD",
        "Apache-2.0",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "ISC",
        "MIT",
        "MIT-0",
        "PSF-2.0",
        "Apache Software License",
        "BSD License",
        "ISC License (ISCL)",
        "MIT License",
        "Python Software Foundation License",
    }
)
#: Some environments begin with these. Nothing of ours uses them.
INSTALLERS = ("pip", "setuptools")
#: Licences that ask for more: a package that has one must be in NOTICE, with why it is no obstacle.
NAMED = frozenset(
    {
        "LGPL-3.0-only",
        "MPL-2.0",
        "Mozilla Public License 2.0 (MPL 2.0)",
        "Other/Proprietary License",
    }
)


def problems(installed: Iterable[Distribution], notice: str) -> Iterator[str]:
    """What must be decided before a release: unknown licences, and those that NOTICE does not name."""
    named = set(re.findall(r"[a-z0-9][a-z0-9_.-]+", notice.lower()))
    for distribution in installed:
        name = distribution.metadata["Name"]
        wanted = set(licences_of(distribution))
        if not wanted:
            yield f"{name} states no licence."
        for licence in sorted(wanted - ALLOWED):
            if licence not in NAMED:
                yield f"{name} has the licence {licence!r}: it is on no list in tools/release/licences.py."
            elif name.lower() not in named:
                yield f"{name} has the licence {licence!r}: controlplane/NOTICE must name the package."


def licences_of(distribution: Distribution) -> Iterator[str]:
    """The licences that a package needs all of: of a choice, the one that is allowed."""
    metadata = distribution.metadata
    expression = metadata.get("License-Expression") or ""
    if expression:
        for part in re.split(r"\s+AND\s+", expression.replace("(", "").replace(")", "")):
            choice = re.split(r"\s+OR\s+", part)
            yield next((licence for licence in choice if licence in ALLOWED), choice[0])
        return
    stated = [line.split(" :: ")[-1] for line in metadata.get_all("Classifier") or [] if "License ::" in line]
    if stated:
        yield from stated
    elif (text := (metadata.get("License") or "").strip()) and "\n" not in text:
        yield text


def installed_in(environment: Path) -> list[Distribution]:
    """The packages of a virtual environment, without those that every environment has."""
    folders = [str(path) for path in environment.glob("lib/python*/site-packages")]
    found = distributions(path=folders)
    return [one for one in found if one.metadata["Name"] not in INSTALLERS]
