-- A store in one SQLite database, of format 2. One of format 1 lacks the column `meta`, and gets it
-- with its first event that has any. Every statement runs in the transaction that first needs its
-- group: an empty table or index costs a page of 16 KiB, so most are made on first use, and two
-- indexes only once their tables have numbered 32 rows. Up to there a name is looked for row by row;
-- that no name is there twice is seen to by the transaction that adds it.
--
-- A crc is CRC-32 as a signed number over every other value of its row: SQLite itself returns a
-- flipped bit as if it were data.

-- group: core

-- A stream's name is stored once; its events carry the number. `first` is the revision that the
-- stream itself begins with: 1, or one more than the parent's revision that a fork began at.
CREATE TABLE IF NOT EXISTS streams (
  id INTEGER PRIMARY KEY,
  name TEXT NOT NULL,
  first INTEGER NOT NULL
) STRICT;

-- One row per event, in the order of the whole store; rows are never deleted, so an ordinal never
-- comes back. The events of a commit lie side by side and share a position, the ordinal of the
-- last of them; NULL says that it is the row's own. A row without a stream is the place of a commit
-- without events; the one with the ordinal 0 is the store's own: type 'store', its id as the
-- subject, and the time that it was made. The payload comes late: a large one spills onto pages of
-- its own, and everything before it is read without them. Only `meta` comes after it, where it is
-- in a store that was made with format 1.
CREATE TABLE IF NOT EXISTS events (
  ordinal INTEGER PRIMARY KEY,
  position INTEGER,
  stream INTEGER,
  revision INTEGER,
  time INTEGER,
  type TEXT,
  actor TEXT,
  key TEXT,
  checkpoint TEXT,
  subject TEXT,
  crc INTEGER,
  link BLOB,
  payload BLOB,
  meta TEXT
) STRICT;

-- The one index that every commit writes.
CREATE UNIQUE INDEX IF NOT EXISTS events_by_revision ON events (stream, revision);

-- group: streams_by_name

CREATE UNIQUE INDEX IF NOT EXISTS streams_by_name ON streams (name);

-- group: checkpoints

-- Where a checkpoint name was given, for every event up to the newest ordinal that is a multiple of
-- 256. The commit that passes such an ordinal adds the names since the one before; names behind it
-- are found in the events. So a commit that names a checkpoint writes no page more than others do.
CREATE TABLE IF NOT EXISTS checkpoints (
  stream INTEGER NOT NULL,
  name TEXT NOT NULL,
  ordinal INTEGER NOT NULL,
  PRIMARY KEY (stream, name, ordinal)
) STRICT, WITHOUT ROWID;

-- group: keys

-- Idempotency keys; the event has the key too.
CREATE TABLE IF NOT EXISTS keys (
  stream INTEGER NOT NULL,
  key TEXT NOT NULL,
  revision INTEGER NOT NULL,
  PRIMARY KEY (stream, key)
) STRICT, WITHOUT ROWID;

-- group: leases

-- ends_us counts on the clock of the boot that is named beside it. A lease that is released is
-- deleted; the row without a name has the greatest epoch of all that were, because an epoch must
-- never be given again.
CREATE TABLE IF NOT EXISTS leases (
  name TEXT PRIMARY KEY,
  owner TEXT NOT NULL,
  epoch INTEGER NOT NULL,
  boot TEXT NOT NULL,
  ends_us INTEGER NOT NULL,
  crc INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- group: marks

-- Marks as commits set them. `about` is what the contract calls the index, `team` its group.
CREATE TABLE IF NOT EXISTS marks (
  about TEXT NOT NULL,
  key TEXT NOT NULL,
  due INTEGER NOT NULL,
  priority INTEGER NOT NULL,
  team TEXT NOT NULL,
  crc INTEGER NOT NULL,
  PRIMARY KEY (about, key)
) STRICT, WITHOUT ROWID;

-- The order in which marks are claimed.
CREATE INDEX IF NOT EXISTS marks_by_urgency ON marks (about, priority DESC, due, key);

-- Who works on which mark, until when, on the clock of which boot. It goes with its mark.
CREATE TABLE IF NOT EXISTS claims (
  about TEXT NOT NULL,
  key TEXT NOT NULL,
  owner TEXT NOT NULL,
  boot TEXT NOT NULL,
  ends_us INTEGER NOT NULL,
  PRIMARY KEY (about, key)
) STRICT, WITHOUT ROWID;

-- group: objects

-- Snapshots and blobs. The data comes last, as in events.
CREATE TABLE IF NOT EXISTS objects (
  id INTEGER PRIMARY KEY,
  kind TEXT NOT NULL,
  name TEXT NOT NULL,
  crc INTEGER NOT NULL,
  data BLOB NOT NULL
) STRICT;

-- group: objects_by_name

CREATE UNIQUE INDEX IF NOT EXISTS objects_by_name ON objects (kind, name);
