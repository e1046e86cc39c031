"""What people look at: self-contained pages."""
