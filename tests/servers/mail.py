"""A mail server on the loopback: it keeps what it takes, and answers, hangs up or dawdles as a test wants it to.

It speaks what `smtplib` does: EHLO, STARTTLS, AUTH, MAIL, RCPT, DATA, RSET, QUIT.
"""

from __future__ import annotations

import base64
import socketserver
import ssl
import threading
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default
from pathlib import Path
from typing import cast

import trustme

HOST = "mail.example"


@dataclass(frozen=True)
class Taken:
    """A mail that was taken, and how it came."""

    sender: str
    receivers: tuple[str, ...]
    raw: bytes
    over_tls: bool
    login: tuple[str, str] | None

    @property
    def message(self) -> EmailMessage:
        return cast("EmailMessage", message_from_bytes(self.raw, policy=default))

    @property
    def text(self) -> str:
        return str(self.message.get_content())


@dataclass
class Manners:
    """How it behaves. `answers` by command go before its own; at the command in `hangs_up` it says nothing more."""

    answers: dict[str, str] = field(default_factory=dict)
    hangs_up: str = ""
    starttls: bool = True
    dawdles: bool = False


class MailServer:
    """One port, plain with STARTTLS or, with `tls`, encrypted from the first byte."""

    def __init__(self, directory: Path, *, tls: bool = False) -> None:
        authority = trustme.CA()
        self.authority = directory / "mail-authority.pem"
        authority.cert_pem.write_to_path(str(self.authority))
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1", HOST).configure_cert(self.context)
        self.tls = tls
        self.manners = Manners()
        self.taken: list[Taken] = []
        self.commands: list[str] = []
        self.heard = threading.Event()
        self.closing = threading.Event()
        self._server = _Server(("127.0.0.1", 0), _Session)
        self._server.mail = self
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def url(self, host: str = "127.0.0.1") -> str:
        return f"{'smtps' if self.tls else 'smtp'}://{host}:{self.port}"

    def close(self) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    mail: MailServer

    def handle_error(self, *args: object) -> None:
        """Clients hang up, and refuse certificates: the tests look at what they say of that."""


class _Session(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        self.mail = cast("_Server", self.server).mail
        self.encrypted = False
        self.login: tuple[str, str] | None = None
        self.sender = ""
        self.receivers: list[str] = []
        if self.mail.tls:
            self._encrypt()
        self.lines = self.request.makefile("rb")
        if self.mail.manners.dawdles:
            while not self.mail.closing.wait(0.02):
                self.request.sendall(b"2")
            return
        self._say("220 here")
        while line := self.lines.readline():
            text = line.decode().rstrip("\r\n")
            verb, _, rest = text.partition(" ")
            self.mail.commands.append(verb.upper())
            if verb.upper() == self.mail.manners.hangs_up or not self._obey(verb.upper(), rest):
                return

    def _obey(self, verb: str, rest: str) -> bool:
        planned = self.mail.manners.answers.get(verb)
        if planned is not None:
            self._say(planned)
        elif verb == "EHLO":
            more = "" if self.encrypted or not self.mail.manners.starttls else "250-STARTTLS\r\n"
            self._say(f"250-here\r\n{more}250 AUTH PLAIN")
        elif verb == "STARTTLS":
            self._say("220 go on")
            self._encrypt()
            self.lines = self.request.makefile("rb")
        elif verb == "AUTH":
            _, user, password = base64.b64decode(rest.split()[1]).decode().split("\0")
            self.login = (user, password)
            self._say("235 welcome")
        elif verb == "MAIL":
            self.sender, self.receivers = _address(rest), []
            self._say("250 fine")
        elif verb == "RCPT":
            self.receivers.append(_address(rest))
            self._say("250 fine")
        elif verb == "DATA":
            self._say("354 go on")
            return self._take()
        else:
            self._say("221 bye" if verb == "QUIT" else "250 fine")
        return verb != "QUIT"

    def _take(self) -> bool:
        body = b""
        while (line := self.lines.readline()) != b".\r\n":
            if not line:
                return False
            body += line.removeprefix(b".") if line.startswith(b"..") else line
        if self.mail.manners.hangs_up == "END":
            return False
        end = self.mail.manners.answers.get("END", "250 taken")
        if end.startswith("250"):
            taken = Taken(self.sender, tuple(self.receivers), body, self.encrypted, self.login)
            self.mail.taken.append(taken)
            self.mail.heard.set()
        self._say(end)
        return True

    def _encrypt(self) -> None:
        self.request = self.mail.context.wrap_socket(self.request, server_side=True)
        self.encrypted = True

    def _say(self, text: str) -> None:
        self.request.sendall(text.encode() + b"\r\n")


def _address(rest: str) -> str:
    return rest.partition("<")[2].partition(">")[0]
