"""What happened in somebody's projects, by mail, once a day or a week: only for who asked, and only if anything did.

`service` keeps the choice and writes what is due into an outbox, in the transaction that moves the period on;
`sending` takes it from there. What is told is read by `repository` and put into words by `composing`.
"""
