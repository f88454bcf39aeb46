"""The people who log in."""

PASSWORD = "correct horse battery staple"
