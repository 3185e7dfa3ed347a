"""Jobs: rows with state, attempt, owner and lease, and the doorbell that wakes workers.

The database is the truth: losing every message of the broker costs a few seconds. What a job's end means for its
analysis is not known here (`services.analyses`).
"""
