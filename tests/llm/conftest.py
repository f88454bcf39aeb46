"""One vendor for each test."""

from collections.abc import Iterator

import pytest

from tests.llm.vendor import Vendor, serving


@pytest.fixture
def vendor() -> Iterator[Vendor]:
    with serving() as vendor:
        yield vendor
