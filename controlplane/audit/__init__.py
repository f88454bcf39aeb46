"""Who changed what, when and why. Rows are only ever added."""
