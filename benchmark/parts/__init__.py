"""Measurements of single parts that `lrl bench` does not take."""
