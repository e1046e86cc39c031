"""Other people's formats. The only home of `transformers`."""
