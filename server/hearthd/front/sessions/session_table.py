"""The table of sessions and their leases.

Times are those of the `clock` that is passed in. Only `close` and `close_all` wait.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

import structlog

from hearth_proto import PROTOCOL_MAX, PROTOCOL_MIN
from hearth_proto.reasons import Reason, Refusal
from hearthd.front import errors, opentelemetry
from hearthd.front.audit.recorder import Audit
from hearthd.front.sessions.client_process import ClientProcess, calling_process
from hearthd.front.sessions.session import Session, SessionEnd
from hearthd.front.sessions.tenant_accounts import TenantAccounts
from hearthd.front.tenancy.tenants import ANONYMOUS, Caller, Right

log = structlog.get_logger("hearthd.sessions")

CLOSE_TIMEOUT = 5.0
"""Maximum time, in seconds, for a device process to free a session's memory. Afterwards the close is answered without
waiting for the memory. This is less than the 10 s that clients wait for an answer, and more than the time after which
an unshared process with endless work is ended."""
_REMEMBERED = 1024
"""Maximum number of ended sessions that are remembered, because their clients may not know that they have ended."""


class SessionTable:
    """The table of all sessions of the daemon."""

    def __init__(
        self,
        lease: float = 30.0,
        limit: int = 1024,
        clock: Callable[[], float] = time.monotonic,
        on_close: Callable[[str], None] = lambda session_id: None,
        on_closed: Callable[[Session], None] = lambda session: None,
    ) -> None:
        self.lease = lease
        self.limit = limit
        self._clock = clock
        self._on_close = on_close
        self._on_closed = on_closed
        self._sessions: dict[bytes, Session] = {}
        self._ended: dict[bytes, tuple[str, str, SessionEnd]] = {}
        """Id, reason and cause of sessions that ended recently and were not closed by their clients, oldest first."""
        self._closing: set[asyncio.Task[list[int]]] = set()
        self.accounts = TenantAccounts()
        self.audit = Audit()
        self.on_credential: Callable[[Caller | None], None] = lambda caller: None
        """Called with the caller that opened the session whose token the running call shows. None: no live session."""
        self.check_use: Callable[[Session], None] = lambda session: None
        """Raises `UNAUTHENTICATED` if the running call may not use the session; see `auth.session_binding`."""
        self.draining = False
        self.drain_left: Callable[[], float] = lambda: 0.0
        self.overloaded: Callable[[], str] = lambda: ""
        """Returns the reason why new sessions are refused. Empty: they are not refused."""
        self.emptied = asyncio.Event()
        self.emptied.set()

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def refuses_new(self) -> bool:
        """True if no new session is accepted, because the daemon drains or is overloaded."""
        return self.draining or bool(self.overloaded())

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._sessions.values()))

    def open(
        self,
        client_name: str,
        client_version: str,
        caller: Caller = ANONYMOUS,
        *,
        dedicated: bool = False,
        launch_timeout: float = 0.0,
        client_process: str = "",
        watch: Callable[[], ClientProcess | None] = lambda: None,
    ) -> tuple[Session, str]:
        """Opens a session and returns it with its token. Raises `DRAINING`, `SESSION_LIMIT` or `QUOTA_EXCEEDED`.

        `watch` returns the calling process, with whose end the session ends. None: the session ends with its lease.
        """
        self.check_draining("takes no new sessions")
        if len(self._sessions) >= self.limit:
            raise Refusal(
                Reason.SESSION_LIMIT,
                f"{len(self._sessions)} sessions are open; the maximum is {self.limit}.",
                fix="Close sessions that are no longer used, or raise sessions.max in the daemon's configuration.",
                details={"requested": len(self._sessions) + 1, "allowed": self.limit},
                retry_after_s=1.0,
            )
        account = self.accounts.admit(caller.tenant)
        self.accounts.check_share(account, self.limit)
        token = secrets.token_urlsafe(24)
        session = Session(
            id=secrets.token_hex(4),
            client_name=client_name[:200],
            client_version=client_version[:100],
            client_process=client_process[:100],
            opened_unix_ns=time.time_ns(),
            lease=self.lease,
            last_used=self._clock(),
            key=_key(token),
            tenant=caller.tenant,
            caller=caller,
            credential_deadline=self._credential_deadline(caller),
            dedicated=dedicated,
            launch_timeout=launch_timeout,
            queue=account.queue,
        )
        session.process = watch()
        if session.process is not None:
            session.process.watch(lambda: self._check_orphaned(session))
        self._sessions[session.key] = session
        self.accounts.opened(session)
        self.emptied.clear()
        log.info("session_open", session=session.id, client=session.client_name, tenant=session.tenant.name)
        self.audit.record("session_open", session, client=session.client_name, dedicated=dedicated)
        opentelemetry.of_session(session)
        return session, token

    def check_draining(self, consequence: str) -> None:
        """Raises `DRAINING` if the daemon drains. `consequence`: what the daemon then does not do, for people."""
        if self.draining:
            raise Refusal(
                Reason.DRAINING,
                f"The daemon is draining and {consequence}.",
                fix="Try again when it has been restarted, or use another node.",
                retry_after_s=max(1.0, self.drain_left()),
            )

    def require(self, source: Session | Caller, needed: Collection[Right], operation: str) -> None:
        """Raises `PERMISSION_DENIED` if the tenant of `source` lacks one of the rights, and records that for audit."""
        try:
            source.tenant.require(needed, operation)
        except Refusal as refusal:
            self.audit.refused(source, operation, refusal)
            raise

    def find(self, token: str) -> Session:
        """Returns the session of a token for the running call, and renews its lease.

        Raises `SESSION_EXPIRED`, or `UNAUTHENTICATED` if the session is bound to another credential than the call
        shows.
        """
        session = self.owner(token)
        self.check_use(session)
        return session

    def owner(self, token: str) -> Session:
        """Returns the session of a token and renews its lease, whatever credential the call shows.

        Raises `SESSION_EXPIRED`.

        The table is keyed by a hash of the token, so that the time of a look-up reveals nothing about live tokens.
        """
        key = _key(token)
        session = self._sessions.get(key)
        now = self._clock()
        if session is None or session.closing or session.deadline <= now:
            self.on_credential(None)
            if key in self._ended:
                raise _session_ended(*self._ended[key])
            if session is not None and not session.closing:
                raise _session_ended(session.id, session.expiry_reason, session.expiry_cause)
            raise errors.session_expired()
        self.on_credential(session.caller)
        if session.process is not None and session.process.pid != calling_process.get():
            session.process.close()  # the session belongs to several processes, and ends with its lease
            session.process = None
        session.last_used = now
        opentelemetry.of_session(session)
        return session

    @contextmanager
    def keep_alive(self, session: Session) -> Iterator[None]:
        """Keeps the session from expiring while the context is entered."""
        session.connections += 1
        try:
            yield
        finally:
            session.connections -= 1
            session.last_used = self._clock()
            self._check_orphaned(session)

    def lease_left(self, session: Session) -> float:
        """Returns the remaining lease in seconds; the whole lease while the session is in use."""
        return session.lease if session.connections else max(0.0, session.deadline - self._clock())

    def _check_orphaned(self, session: Session) -> None:
        """Starts to close the session if its client's process has ended and no connection is left."""
        if session.orphaned and not session.closing:
            task = asyncio.create_task(self.expire(session))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def expired(self) -> list[Session]:
        """Returns the sessions whose lease has run out, or whose credential has expired."""
        now = self._clock()
        return [session for session in self if session.deadline <= now and not session.closing]

    async def expire(self, session: Session) -> list[int]:
        """Ends a session that `expired` lists, as `close` does."""
        return await self.close(session, session.expiry_reason, cause=session.expiry_cause)

    def renew(self, session: Session, caller: Caller) -> None:
        """Applies the caller's present state to the session: the same tenant, with other rights, quotas or dates."""
        session.caller, session.tenant = caller, caller.tenant
        session.credential_deadline = self._credential_deadline(caller)

    def _credential_deadline(self, caller: Caller) -> float:
        return self._clock() + max(0.0, caller.expires - time.time())

    async def close(
        self,
        session: Session,
        reason: str,
        time_limit: float = CLOSE_TIMEOUT,
        *,
        cause: SessionEnd = SessionEnd.CLIENT,
    ) -> list[int]:
        """Ends a session and waits, at most `time_limit` seconds, until the devices have freed its memory.

        Returns the ordinals of the devices that have not freed it, because a kernel of the session still runs there.
        `reason` is for people, `cause` for metrics. Later calls of the client are refused with the reason, unless the
        client has closed the session. The close completes even if its caller stops waiting.
        """
        if session.closing:
            return []
        session.closing, session.ended_by = True, cause
        if session.process is not None:
            session.process.close()
        self._sessions.pop(session.key, None)
        self.accounts.closed(session, cause)
        self.audit.record("session_close", session, why=reason, device_seconds=round(session.device_ns / 1e9, 6))
        if not self._sessions:
            self.emptied.set()
        self._on_close(session.id)
        refusal = _session_ended(session.id, reason, cause)
        if cause is not SessionEnd.CLIENT:
            self._ended[session.key] = session.id, reason, cause
            if len(self._ended) > _REMEMBERED:
                del self._ended[next(iter(self._ended))]
        channels, session.channels = session.channels, {}
        session.ended.clear()  # no client resumes what is kept there
        closes = {asyncio.create_task(channel.close(refusal)): ordinal for ordinal, channel in channels.items()}
        task = asyncio.create_task(self._wait_closed(session, reason, time_limit, closes), name=f"close-{session.id}")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        return await asyncio.shield(task)  # a client waits a limited time for the answer

    async def _wait_closed(
        self, session: Session, reason: str, time_limit: float, closes: dict[asyncio.Task[None], int]
    ) -> list[int]:
        running: list[int] = []
        if closes:
            _, pending = await asyncio.wait(closes, timeout=time_limit)
            running = sorted(closes[task] for task in pending)
            for task in pending:
                task.cancel()
            if pending:
                log.warning("session_close_slow", session=session.id, devices=running, seconds=time_limit)
        self._on_closed(session)
        log.info("session_close", session=session.id, client=session.client_name, why=reason)
        return running

    async def close_all(self, reason: str, time_limit: float) -> None:
        """Ends all sessions concurrently, because the daemon stops."""
        await asyncio.gather(*(self.close(session, reason, time_limit, cause=SessionEnd.STOP) for session in self))


def _session_ended(session: str, reason: str, cause: SessionEnd) -> Refusal:
    credential = " with a valid credential from the daemon's operator" if cause is SessionEnd.CREDENTIAL else ""
    return Refusal(
        Reason.SESSION_EXPIRED,
        f"Session {session} has ended: {reason}.",
        fix=f"Open a new session{credential}; the resources of the old session were released.",
    )


def negotiate(minimum: int, maximum: int) -> int:
    """Returns the newest protocol version that both sides support.

    0 and 0 (a plain gRPC tool) select the daemon's newest.
    """
    if not minimum and not maximum:
        return PROTOCOL_MAX
    version = min(maximum, PROTOCOL_MAX)
    if version < max(minimum, PROTOCOL_MIN):
        client_is_older = maximum < PROTOCOL_MIN
        raise Refusal(
            Reason.VERSION_UNSUPPORTED,
            f"The client speaks protocol versions {minimum} to {maximum}, the daemon {PROTOCOL_MIN} to {PROTOCOL_MAX}.",
            fix=f"Upgrade the {'client' if client_is_older else 'daemon'}.",
            details={"requested": f"{minimum} to {maximum}", "allowed": f"{PROTOCOL_MIN} to {PROTOCOL_MAX}"},
        )
    return version


def _key(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
