"""A store in Redis or Valkey: many processes, many machines, one server's clock.

`docs/decisions/0007-redis.md` says why it is laid out so. All keys of a store have one hash tag,
its application, so they are in one slot of a cluster, and one script can write any of them. The
keys of the application `shop`:

    holdfast:{shop}                       hash: store (its id), format, position (the newest that
                                          was given), incarnation (the server that gave it,
                                          or at first made the store), seen (the latest second
                                          of a commit), epoch (the greatest of a released lease);
                                          and counts: streams, entries (of log), leases, indexes,
                                          objects:<kind>, expiring:<kind>
    holdfast:{shop}:events:<stream>       stream: one entry per event, its id <revision>-0; fields
                                          position, time, type, actor, link, crc, where there are
                                          any key, checkpoint, subject, and payload
    holdfast:{shop}:rewriting:<stream>    stream: the copy of events that `rewrite` is at work on
    holdfast:{shop}:log                   stream: one entry per commit with events, its id
                                          <position>-0; fields <stream> = <first> <count>
    holdfast:{shop}:heads                 hash: <stream> = <revision> <link> <time> <position>
                                          <first> <end, 0: it lasts>, and how many it has:
                                          <keys> <checkpoint names>
    holdfast:{shop}:streams               sorted set of names, all scores 0
    holdfast:{shop}:keys:<stream>         hash: <key> = <revision> <time>
    holdfast:{shop}:checkpoints:<stream>  sorted set by revision: <revision> <time> <name>
    holdfast:{shop}:named:<stream>        sorted set: <name>\\0<revision, 16 digits> <time>
    holdfast:{shop}:leases                hash: <name> = <epoch> <end in microseconds> <owner>;
                                          one that was released is not there
    holdfast:{shop}:indexes               set of the indexes that have marks
    holdfast:{shop}:marks:<index>         hash: <key> = <order><group>; the order is 40 digits:
                                          2^63 - priority, 2^63 + due
    holdfast:{shop}:order:<index>         sorted set of all its marks: <order><key>
    holdfast:{shop}:due:<index>           the same, by due time: those not yet due
    holdfast:{shop}:ready:<index>         the same, in order: those to be claimed
    holdfast:{shop}:held:<index>          the same, by the claim's end: those claimed
    holdfast:{shop}:claims:<index>        hash: <key> = <owner>
    holdfast:{shop}:object:<kind>:<name>  string: 8 hex digits of CRC-32, then the bytes
    holdfast:{shop}:objects:<kind>        sorted set of names, all scores 0
    holdfast:{shop}:expiring:<kind>       sorted set of those that go by themselves, by the time
    holdfast:{shop}:token:<random>        string, for a day: the position of a commit without events

The keys of a stream that ends by itself are deleted by the server at its end; its name and head
stay. If a key is not as long as its count says, something is lost: `redis_counts.lua`. A payload is
stored verbatim, a link is 64 hex digits, and times are microseconds since 1970.
"""

from __future__ import annotations

from holdfast.backends.redis.backend import RedisBackend

__all__ = ["RedisBackend"]
