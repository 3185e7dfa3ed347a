"""What GitHub offers in GraphQL alone: conversations at lines, resolving them, and folding comments away."""

from __future__ import annotations

from typing import Final

REVIEW_THREADS: Final = """\
query ReviewThreads($owner: String!, $name: String!, $number: Int!, $after: String) {
  repository(owner: $owner, name: $name) {
    pullRequest(number: $number) {
      reviewThreads(first: 50, after: $after) {
        pageInfo { hasNextPage endCursor }
        nodes {
          id isResolved isOutdated path line
          comments(first: 50) {
            totalCount
            nodes { id databaseId body url createdAt updatedAt author { __typename login } }
          }
        }
      }
    }
  }
}
"""

RESOLVE_THREAD: Final = """\
mutation ResolveThread($thread: ID!) {
  resolveReviewThread(input: {threadId: $thread}) { thread { id isResolved } }
}
"""

UNRESOLVE_THREAD: Final = """\
mutation UnresolveThread($thread: ID!) {
  unresolveReviewThread(input: {threadId: $thread}) { thread { id isResolved } }
}
"""

MINIMISE_COMMENT: Final = """\
mutation MinimizeComment($subject: ID!, $classifier: ReportedContentClassifiers!) {
  minimizeComment(input: {subjectId: $subject, classifier: $classifier}) { minimizedComment { isMinimized } }
}
"""
