"""What the control plane knows of the fleet at one moment, built once for pages, API and alert rules."""
