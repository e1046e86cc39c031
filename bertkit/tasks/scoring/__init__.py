"""From predictions to scores: metrics, baselines, reviews, and the archive for the GLUE server."""
