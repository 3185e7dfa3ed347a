"""How a target is built and called: a recipe of expressions, either declared by the repository or found by trying."""
