"""The pages operators look at. Writes only through the control plane's named edit functions."""
