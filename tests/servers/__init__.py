"""Real servers for tests: PostgreSQL and Valkey, started by the test run itself and stopped with it.

Both work for root (which neither server accepts: they are run as `nobody`) and for an ordinary user, listen on unix
sockets only, and can be killed and started again by a test. Nothing needs to run beforehand.
"""

from __future__ import annotations

from tests.servers.postgres import PostgresServer
from tests.servers.valkey import ValkeyServer

__all__ = ["PostgresServer", "ValkeyServer"]
