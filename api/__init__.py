"""How the outside reaches Gradproof: REST, pages, the command line. Holds no query and no rule of the domain."""
