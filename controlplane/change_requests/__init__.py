"""Change requests: decided, rebased and applied. What needs approval is `controlplane.approvals`."""
