"""Who logs in."""

PASSWORD = "correct horse battery staple"
