"""Who changed what, when and why; rows are only ever added."""
