"""What each command accepts, and how Hydra composes it."""
