"""Changes for later, and quotas that end by themselves: applied, announced, and never failed silently."""
