"""One module per resource of the REST API."""

# First, because it sets how the documents of all operations are built.
import controlplane.api.schemas  # noqa: F401
