"""The whole product on one machine: everything real, nothing beyond loopback.

``python manage.py demo`` runs it to be watched; ``--check`` lets it tell its own story, one
checkpoint after the other, and fails when a chapter is not true.
"""
