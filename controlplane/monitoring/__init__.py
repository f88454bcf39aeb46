"""Files for people who monitor Fuseboard, made from the catalogue of metrics and from the alert rules."""
