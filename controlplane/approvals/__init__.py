"""In some environments a second person looks first: edits wait as change requests until then."""
