"""The way to and from forges (GitHub, GitLab): what they tell us, what we write there, and what we say.

`client` is the protocol that both forges are spoken to by, `values` are what goes in and out of it, `errors` what can
go wrong. `check_output`, `summary_comment`, `inline_comments`, `commands_text`, `diff` and `signatures` are pure.
"""
