"""One module per resource of the REST API."""
