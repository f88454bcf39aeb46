"""Alert rules as data: what is wrong, in words, and from when on."""
