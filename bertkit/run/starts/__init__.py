"""What a run starts from: a new model or the user's, checked to fit the data and the settings."""
