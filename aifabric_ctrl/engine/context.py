"""What every part of the engine shares during one step: the time, the effects so far, counters and the journal."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping

from aifabric_ctrl.engine.view import JournalEntry
from aifabric_ctrl.model.blueprint import Blueprint
from aifabric_ctrl.model.effects import Effect, Journal
from aifabric_ctrl.model.intent import Intent

JOURNAL_KEPT = 2000  # lines in memory; the store keeps more
QUIET_S = 10.0  # the same line about the same thing at most this often
QUIET_KEYS = 4096  # bound on what a host can make us remember about repeats


class Context:
    """Collects effects in order; one instance for the engine's life."""

    def __init__(self, intent: Intent) -> None:
        self.intent = intent
        self.blueprint = Blueprint()
        self.now = 0.0
        self.effects: list[Effect] = []
        self.counters: Counter[str] = Counter()
        self.journal: deque[JournalEntry] = deque(maxlen=JOURNAL_KEPT)
        self._next_id = 1
        self._quiet_until: dict[tuple[str, object], float] = {}

    def emit(self, effect: Effect) -> None:
        """Ask a shell for something."""
        self.effects.append(effect)

    def take(self) -> list[Effect]:
        """The effects since the last call."""
        effects, self.effects = self.effects, []
        return effects

    def count(self, name: str, n: int = 1) -> None:
        """Add to a counter (never negative, never reset)."""
        self.counters[name] += n

    def note(self, severity: str, kind: str, text: str, data: Mapping[str, object] | None = None) -> None:
        """Write one line for people and count its kind."""
        data = dict(data or {})
        self.count(f"journal_{kind}")
        self.journal.append(JournalEntry(self._next_id, self.now, severity, kind, text, data))
        self._next_id += 1
        self.emit(Journal(severity, kind, text, data))

    def note_quietly(self, key: object, severity: str, kind: str, text: str, data: Mapping[str, object] | None = None) -> None:
        """Like :meth:`note`, but at most once per ``QUIET_S`` for one (kind, key): hosts can cause these at will."""
        mark = (kind, key)
        if self._quiet_until.get(mark, 0.0) > self.now:
            self.count(f"journal_{kind}_repeats")
            return
        if len(self._quiet_until) >= QUIET_KEYS:
            self._quiet_until = {k: t for k, t in self._quiet_until.items() if t > self.now}
            if len(self._quiet_until) >= QUIET_KEYS:
                self.count(f"journal_{kind}_repeats")
                return
        self._quiet_until[mark] = self.now + QUIET_S
        self.note(severity, kind, text, data)
