"""What is visible on PostgreSQL while somebody's transaction is open."""

from __future__ import annotations

import psycopg
import pytest

import holdfast
from tests.servers.postgresql import installations, server


@pytest.mark.parametrize("version", installations())
def test_a_view_and_a_check_see_what_was_acknowledged_beside_an_open_transaction(
    version: int,
) -> None:
    """Guarantee 2, and clause 20: positions of PostgreSQL are not the order of its commits."""
    running = server(version)
    running.create_database("viewed")
    with holdfast.open(running.url("viewed")) as hf:
        red, blue = hf.team("red"), hf.team("blue")
        red.set("n", 1)
        with psycopg.connect(running.url("viewed")) as stranger:
            stranger.execute("CREATE TABLE unrelated (n int)")
            with hf.commit() as tx:
                tx.scope(red).set("n", 2)
                tx.scope(blue).set("n", 2)
            view = hf.view()
            red.set("n", 3)
            assert (view.get(red, "n"), view.get(blue, "n")) == (2, 2)
            assert hf.view().get(red, "n") == 3
            # Whoever follows from the view's position misses nothing that is not in it.
            assert view.position == hf.position < hf.log.backend.heads([blue.name])[0].position
            assert hf.check().findings == []
            stranger.rollback()
        assert (view.get(red, "n"), view.get(blue, "n")) == (2, 2)
        assert [event.stream for event in hf.events(after=view.position)] == [
            red.name,
            blue.name,
            red.name,
        ]
