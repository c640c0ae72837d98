"""Who holds a datapath id: one session each, by the rule of DESIGN invariant 9.  Pure; it opens and closes nothing.

A second connection that claims a live datapath id does not win by being newer: a misconfigured bridge would throw the
real switch off.  The old one is asked for an echo; if it does not answer in a second it is taken for dead (a switch
that rebooted) and the new one is admitted, else the new one is refused.  Everything is keyed by session number, so the
late end of an old session can never remove the new one.
"""

from __future__ import annotations

from dataclasses import dataclass

from aifabric_ctrl.model.events import DuplicateVerdict, Session
from aifabric_ctrl.model.ids import Dpid

PROOF_S = 1.0  # time for the old connection to answer (DESIGN invariant 9)


@dataclass(frozen=True, slots=True)
class Admit:
    """Let the session's events through to the engine."""

    session: Session


@dataclass(frozen=True, slots=True)
class Probe:
    """Send an echo on this session and report its answer."""

    session: Session


@dataclass(frozen=True, slots=True)
class Close:
    """Drop the session."""

    session: Session
    reason: str


Order = Admit | Probe | Close | DuplicateVerdict


@dataclass(frozen=True, slots=True)
class _Contest:
    old: Session
    new: Session
    until: float


class Registry:
    """Sessions by datapath id.  Every method returns what to do, in order."""

    def __init__(self) -> None:
        self._holder: dict[Dpid, Session] = {}
        self._contest: dict[Dpid, _Contest] = {}
        self._claim: dict[Session, tuple[Dpid, str]] = {}  # (dpid, address) of holders and challengers

    def holder(self, dpid: Dpid) -> Session | None:
        """The session the engine knows for this datapath id."""
        return self._holder.get(dpid)

    def connected(self, session: Session, dpid: Dpid, address: str, now: float) -> list[Order]:
        """A session finished its handshake and claims ``dpid``."""
        old = self._holder.get(dpid)
        if old is None:
            self._claim[session] = (dpid, address)
            self._holder[dpid] = session
            return [Admit(session)]
        if dpid in self._contest:
            return self._refused(dpid, address, session, old, now)
        self._claim[session] = (dpid, address)
        self._contest[dpid] = _Contest(old, session, now + PROOF_S)
        return [Probe(old)]

    def answered(self, session: Session, now: float) -> list[Order]:
        """The holder answered its echo, so it lives and the challenger is refused."""
        dpid, contest = self._contest_of(session)
        if contest is None or contest.old != session:
            return []
        del self._contest[dpid]
        _, address = self._claim.pop(contest.new)
        return self._refused(dpid, address, contest.new, session, now)

    def gone(self, session: Session, now: float) -> list[Order]:
        """A session ended by itself.  Sessions that hold or claim nothing any more are ignored (case CONN-03)."""
        dpid, contest = self._contest_of(session)
        claim = self._claim.pop(session, None)
        if claim is None:
            return []
        if contest is None:
            del self._holder[claim[0]]
            return []
        del self._contest[dpid]
        if contest.new == session:
            return []
        self._holder[dpid] = contest.new  # the old one died of itself: a plain reconnect, nobody's fault
        return [Admit(contest.new)]

    def tick(self, now: float) -> list[Order]:
        """Decide the contests whose time is over."""
        orders: list[Order] = []
        for dpid, contest in [(d, c) for d, c in self._contest.items() if c.until <= now]:
            del self._contest[dpid]
            _, old_address = self._claim.pop(contest.old)
            _, new_address = self._claim[contest.new]
            self._holder[dpid] = contest.new
            orders += [
                Close(contest.old, f"did not answer while {new_address} connected with the same datapath id"),
                DuplicateVerdict(now, dpid, winner=new_address, loser=old_address),
                Admit(contest.new),
            ]
        return orders

    @property
    def next_deadline(self) -> float:
        """When :meth:`tick` has something to do; infinity when nothing is open."""
        return min((c.until for c in self._contest.values()), default=float("inf"))

    def _contest_of(self, session: Session) -> tuple[Dpid, _Contest | None]:
        dpid, _ = self._claim.get(session, (0, ""))
        contest = self._contest.get(dpid)
        return (dpid, contest) if contest is not None and session in (contest.old, contest.new) else (dpid, None)

    def _refused(self, dpid: Dpid, address: str, session: Session, holder: Session, now: float) -> list[Order]:
        _, winner = self._claim[holder]
        reason = f"datapath id {dpid:016x} is held by the live switch at {winner}"
        return [Close(session, reason), DuplicateVerdict(now, dpid, winner=winner, loser=address)]
