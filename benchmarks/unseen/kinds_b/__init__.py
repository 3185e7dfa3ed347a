"""The Functions of the second set, a module a kind: wrong ones, and right ones (`Right…`) that look alike.

Each class stands alone, as released code does: a checker that reads source finds all of it here.
"""
