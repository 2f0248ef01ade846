"""Penalties: a bounded table of decaying scores of peers whose connections misbehaved. Pure: the clock is passed in.

A score halves every `half_life` seconds. The table holds at most `max_peers` peers. A further peer replaces the one
with the lowest score among the oldest entries, so that a sweep over many addresses does not remove the worst peers.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice

HALF_LIFE = 30.0
"""Time, in seconds, in which a score halves."""
MAX_PEERS = 1024
_MAX_RATIO = 4.0
"""Maximum score, as a multiple of the threshold. However long a peer misbehaved, it is penalized for two half-lives
afterwards."""
_EVICTION_CANDIDATES = 16
"""Number of oldest entries of which one is replaced."""
_MIN_SCORE = 0.05
"""Scores below this value are dropped."""


class Penalties:
    """Scores by peer. Each misbehaving connection adds one point."""

    def __init__(self, threshold: float = 3.0, half_life: float = HALF_LIFE, max_peers: int = MAX_PEERS) -> None:
        """Creates the table. `threshold`: the score from which a peer is penalized."""
        self.threshold = threshold
        self._half_life = half_life
        self._max_peers = max_peers
        self._scores: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """Score and its time by peer; the peer that misbehaved last is at the end."""

    def __len__(self) -> int:
        return len(self._scores)

    def add(self, peer: str, now: float, points: float = 1.0) -> float:
        """Adds points to a peer's score, and returns the new score."""
        score = min(self.score(peer, now) + points, _MAX_RATIO * self.threshold)
        self._scores[peer] = (score, now)
        self._scores.move_to_end(peer)
        if len(self._scores) > self._max_peers:
            self._evict(now)
        return score

    def score(self, peer: str, now: float) -> float:
        """Returns the decayed score of a peer; 0 for an unknown peer."""
        score, updated_at = self._scores.get(peer, (0.0, now))
        return float(score * 0.5 ** (max(0.0, now - updated_at) / self._half_life))

    def is_penalized(self, peer: str, now: float) -> bool:
        """Returns True if the score of a peer is at least `threshold`."""
        return bool(self._scores) and self.score(peer, now) >= self.threshold

    def worst(self, now: float, limit: int) -> list[str]:
        """Returns up to `limit` penalized peers, the highest scores first; drops decayed scores."""
        scores = {peer: self.score(peer, now) for peer in self._scores}
        for peer, score in scores.items():
            if score < _MIN_SCORE:
                del self._scores[peer]
        penalized = [peer for peer, score in scores.items() if score >= self.threshold]
        return sorted(penalized, key=scores.__getitem__, reverse=True)[:limit]

    def _evict(self, now: float) -> None:
        oldest = islice(self._scores, min(_EVICTION_CANDIDATES, len(self._scores) - 1))
        del self._scores[min(oldest, key=lambda peer: self.score(peer, now))]
