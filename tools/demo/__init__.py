"""The whole product on one machine: everything real, nothing beyond loopback.

``python manage.py demo`` runs it to be watched; ``--check`` runs its checkpoints one after the
other, and fails when one does not hold.
"""
