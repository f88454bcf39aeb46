"""The pages that operators look at. They write only through the control plane's edit functions."""
