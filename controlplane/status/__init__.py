"""The fleet at one moment, built once for pages, API and alert rules."""
