"""Scripts that show one failure with torch and the repository alone: no Gradproof needed, nothing random left."""
