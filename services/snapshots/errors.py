"""Every way in which an input is refused, each with a name of its own.

The message names the offending member, part or limit; `details` holds the same as data. Names that come out of an
archive or a repository are shown with `services.snapshots.paths.shown`, so that an error can't carry control or
bidirectional characters into a terminal or a page.
"""

from __future__ import annotations

from services.problems import BadInputError, NotFoundError, SurroundingsError


class SnapshotRefusedError(BadInputError):
    """What was given can't become a snapshot."""

    code = "snapshot-refused"
    title = "The source can't be taken in"


# Names


class PathRefusedError(SnapshotRefusedError):
    """A name that no file of a snapshot may have; `details["reason"]` says why in a few words."""

    code = "path-refused"
    title = "A file name is not acceptable"


class PathTraversalError(PathRefusedError):
    """A name with a `..` part."""

    code = "path-traversal"
    title = "A file name leads out of the tree"


class PathAbsoluteError(PathRefusedError):
    """A name that starts at a root."""

    code = "path-absolute"
    title = "A file name is absolute"


class PathDuplicateError(PathRefusedError):
    """Two names that are one on a file system that ignores case or normalises Unicode."""

    code = "path-duplicate"
    title = "Two files share a name"


class PathConflictError(PathRefusedError):
    """One name for a file and for a directory."""

    code = "path-conflict"
    title = "A name is both a file and a directory"


# Sizes, whatever the source


class TooManyFilesError(SnapshotRefusedError):
    """More files and directories than a snapshot may have."""

    code = "too-many-files"
    title = "Too many files"


class TreeTooLargeError(SnapshotRefusedError):
    """More bytes than a snapshot may have."""

    code = "tree-too-large"
    title = "The source is too large"


class PythonFileTooLargeError(SnapshotRefusedError):
    """A Python file that is too large to be anything a person wrote."""

    code = "python-file-too-large"
    title = "A Python file is too large"


class EmptyTreeError(SnapshotRefusedError):
    """Nothing is left after what is never kept (caches, environments, links) was left out."""

    code = "no-files"
    title = "There are no files"


# Archives


class ArchiveError(SnapshotRefusedError):
    """An archive that is not accepted."""

    code = "archive-refused"
    title = "The archive is not accepted"


class ArchiveUnsupportedError(ArchiveError):
    """The file name does not end like an archive that can be read."""

    code = "archive-unsupported"
    title = "This kind of file can't be read"
    http_status = 415


class ArchiveMalformedError(ArchiveError):
    """Not an archive of the kind that its name says, or a damaged one."""

    code = "archive-malformed"
    title = "The archive is damaged, or not an archive"


class ArchiveTruncatedError(ArchiveMalformedError):
    """The archive ends before its end."""

    code = "archive-truncated"
    title = "The archive is cut short"


class ArchiveChecksumError(ArchiveMalformedError):
    """A member's content does not have the checksum that the archive gives."""

    code = "archive-checksum"
    title = "A checksum in the archive does not match"


class ArchiveSizeMismatchError(ArchiveMalformedError):
    """A member is larger or smaller than the archive says."""

    code = "archive-size-mismatch"
    title = "A size in the archive does not match"


class ArchiveOverlapError(ArchiveMalformedError):
    """Two ZIP members share bytes, the making of a bomb."""

    code = "archive-overlap"
    title = "Members of the archive overlap"


class ArchiveEncryptedError(ArchiveError):
    """A member needs a password."""

    code = "archive-encrypted"
    title = "The archive is encrypted"


class ArchiveCompressionError(ArchiveError):
    """A ZIP member uses a compression method other than stored or deflated."""

    code = "archive-compression"
    title = "A compression method is not supported"


class ArchiveZip64Error(ArchiveError):
    """A ZIP64 archive, which nothing below the limits needs."""

    code = "archive-zip64"
    title = "ZIP64 archives are not accepted"


class ArchiveSymlinkError(ArchiveError):
    """A member is a symbolic link."""

    code = "archive-symlink"
    title = "The archive holds a symbolic link"


class ArchiveHardLinkError(ArchiveError):
    """A member is a hard link."""

    code = "archive-hard-link"
    title = "The archive holds a hard link"


class ArchiveSpecialFileError(ArchiveError):
    """A member is a device, a pipe, a socket, or of a type that is not known."""

    code = "archive-special-file"
    title = "The archive holds something that is no file"


class ArchiveSparseError(ArchiveError):
    """A member is a sparse file, which declares more bytes than it brings."""

    code = "archive-sparse"
    title = "The archive holds a sparse file"


class ArchiveTooManyMembersError(ArchiveError):
    """More members than are accepted."""

    code = "archive-too-many-members"
    title = "The archive has too many members"


class ArchiveTooLargeError(ArchiveError):
    """More bytes, uncompressed, than are accepted."""

    code = "archive-too-large"
    title = "The archive is too large"


class ArchiveMemberTooLargeError(ArchiveError):
    """One member has more bytes than are accepted."""

    code = "archive-member-too-large"
    title = "A member of the archive is too large"


class ArchiveRatioError(ArchiveError):
    """The archive expands further than honest source code does."""

    code = "archive-ratio"
    title = "The archive expands too far"


class ArchiveTooSlowError(ArchiveError):
    """Unpacking took longer than is accepted."""

    code = "archive-too-slow"
    title = "Unpacking the archive took too long"


# Directories


class DirectoryError(SnapshotRefusedError):
    """A local path that can't be read."""

    code = "directory-unreadable"
    title = "The path can't be read"


class DirectoryNotFoundError(DirectoryError):
    """A local path that does not exist, or is neither a directory nor a Python file."""

    code = "directory-not-found"
    title = "There is nothing to analyse at that path"


class DirectoryTooSlowError(DirectoryError):
    """A tree that can't be walked in the time allowed."""

    code = "directory-too-slow"
    title = "Reading the directory took too long"


# Git


class GitError(SnapshotRefusedError):
    """A repository that is not fetched, or can't be."""

    code = "git-refused"
    title = "The repository can't be fetched"


class GitUrlError(GitError):
    """A URL that is not accepted; `details["part"]` names the offending part."""

    code = "git-url"
    title = "The repository URL is not acceptable"


class GitUrlSchemeError(GitUrlError):
    """Anything but `https://`."""

    code = "git-url-scheme"
    title = "Only https:// URLs are fetched"


class GitUrlUserInfoError(GitUrlError):
    """A URL that carries a user name or a password."""

    code = "git-url-userinfo"
    title = "The repository URL holds credentials"


class GitHostNotAllowedError(GitUrlError):
    """A host that the operator's list does not hold."""

    code = "git-host-not-allowed"
    title = "Repositories of that host are not fetched here"


class GitPortError(GitUrlError):
    """A port other than 443 on a public host."""

    code = "git-port"
    title = "That port is not accepted"


class GitHostUnknownError(GitError):
    """A host name without an address."""

    code = "git-host-unknown"
    title = "The host name can't be resolved"


class GitAddressNotPublicError(GitError):
    """A host that is, or resolves to, an address inside some network rather than on the Internet."""

    code = "git-address-not-public"
    title = "The host is not on the public Internet"


class GitRefError(GitError):
    """A ref that git itself would not accept as a name."""

    code = "git-ref"
    title = "The ref is not a valid name"


class GitRefNotFoundError(GitError):
    """The repository has no such branch, tag, or commit."""

    code = "git-ref-not-found"
    title = "The ref does not exist"


class GitRedirectError(GitError):
    """The server sends the request elsewhere, which is not followed."""

    code = "git-redirect"
    title = "The server redirects"


class GitCertificateError(GitError):
    """The server's certificate is not trusted."""

    code = "git-certificate"
    title = "The server's certificate is not trusted"


class GitUnreachableError(GitError):
    """No connection, or no answer that git understands."""

    code = "git-unreachable"
    title = "The server can't be reached"


class GitAccessError(GitError):
    """The repository does not exist or is not public."""

    code = "git-access"
    title = "The repository does not exist or is not public"


class GitTimeoutError(GitError):
    """The fetch took longer than the operator allows."""

    code = "git-timeout"
    title = "Fetching the repository took too long"


class GitCancelledError(GitError):
    """Nobody waits for the fetch any more."""

    code = "git-cancelled"
    title = "The fetch was cancelled"


class GitTooLargeError(GitError):
    """The commit brings more bytes than are accepted."""

    code = "git-too-large"
    title = "The repository is too large"


class GitObjectsError(GitError):
    """The repository holds objects that git calls malformed, or the fetch failed for a reason without a name."""

    code = "git-objects"
    title = "The repository can't be read"


class GitUnavailableError(SurroundingsError):
    """This machine lacks `git`, or what confines it."""

    code = "git-unavailable"
    title = "git is not available here"


# Store


class SnapshotNotFoundError(NotFoundError):
    """The store has no such snapshot."""

    code = "snapshot-not-found"
    title = "Snapshot not found"


class SnapshotStoreError(SurroundingsError):
    """The store can't be written: full, read-only, or not a directory."""

    code = "snapshot-store"
    title = "The snapshot store can't be written"


class SnapshotDamagedError(SurroundingsError):
    """What the store holds under a digest does not have that digest."""

    code = "snapshot-damaged"
    title = "A stored snapshot is damaged"
