"""What a gateway does when a store is down and nobody else can notice or say so."""
