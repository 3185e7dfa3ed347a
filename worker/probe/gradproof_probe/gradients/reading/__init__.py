"""Reading the code of a backward for the circumstances that it tells apart. It reads; it must run nothing it reads."""
