"""Scores of predictions: metrics, baselines, reviews for the report, and the archive for the GLUE server."""
