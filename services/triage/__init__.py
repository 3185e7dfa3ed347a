"""What a team decided about findings, and what became of them over the analyses of a project."""
