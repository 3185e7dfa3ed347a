"""The right Functions, a module a family. Importing one enlists its Functions."""
