"""Portraits: the graph of one call as a picture's plan, and what each module costs. They show, and judge nothing."""
