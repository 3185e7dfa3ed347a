"""The only code of Gradproof that lives beside submitted code.

It finds targets in imported modules, builds inputs, runs checks and explains what they found. It needs torch (2.4 or
newer) and the standard library, and runs under any interpreter that has them. It must import nothing else of
Gradproof and must not be trusted: its parent validates every line that it writes.
"""
