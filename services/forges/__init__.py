"""Forges: pull requests and merge requests, where findings reach people where they work."""
