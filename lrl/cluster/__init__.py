"""Actors on a Ray cluster. Ray places them and moves bytes; what is counted is counted here."""
