"""Documents of the REST API: what comes in, what goes out, and examples."""
