"""What an analysis comes out as: the report document, how it is built, and the formats it is written in."""
