-- Format 1 of a store in a PostgreSQL database, version 13 or later. The statements run in one
-- transaction, under an advisory lock. `holdfast.` is written as the name of the schema that the
-- store was opened with. A schema holds many stores, one per application.
--
-- The primary key of each table begins with the application, and with the stream where there is
-- one: so each can be partitioned or sharded by them. Text sorts by its bytes (collation "C"), as
-- code points do.

-- Which files like this one were run here, oldest first.
CREATE TABLE holdfast.migrations (
  number integer PRIMARY KEY,
  digest text NOT NULL,
  at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- One row per store. A position is (base + transaction id) * 4096 + the commit's number in its
-- transaction. Transaction ids begin anew where a dump was restored (another `system`), and some
-- may come again behind a failover (another `timeline`): then `base` grows, so that positions do.
CREATE TABLE holdfast.stores (
  application text COLLATE "C" PRIMARY KEY,
  store text NOT NULL,
  format integer NOT NULL,
  made_us bigint NOT NULL,
  system bigint NOT NULL,
  timeline text NOT NULL,
  base bigint NOT NULL
);

-- Streams by name, and the revision that each begins with: 1, or one more than the parent's
-- revision that a fork began at. The head of a stream is its newest event.
CREATE TABLE holdfast.streams (
  application text COLLATE "C",
  stream text COLLATE "C",
  first bigint NOT NULL,
  PRIMARY KEY (application, stream)
);

-- One row per event. `position` is shared by the events of a commit, `ordinal` is their order in
-- it. `time` counts microseconds since 1970. The payload is the JSON text exactly as committed. The
-- crc is CRC-32 as a signed number over every column but position and ordinal.
CREATE TABLE holdfast.events (
  application text COLLATE "C",
  stream text COLLATE "C",
  revision bigint,
  position bigint NOT NULL,
  ordinal integer NOT NULL,
  time bigint NOT NULL,
  type text COLLATE "C" NOT NULL,
  actor text COLLATE "C" NOT NULL,
  key text COLLATE "C",
  checkpoint text COLLATE "C",
  subject text COLLATE "C",
  crc integer NOT NULL,
  link bytea NOT NULL,
  payload text COLLATE "C" NOT NULL,
  PRIMARY KEY (application, stream, revision)
);

-- The order of the whole store, for followers.
CREATE INDEX events_by_position ON holdfast.events (application, position);

-- Idempotency keys: one event per stream and key, for ever.
CREATE UNIQUE INDEX events_by_key ON holdfast.events (application, stream, key)
  WHERE key IS NOT NULL;

-- Revisions that were given a name.
CREATE INDEX events_by_checkpoint ON holdfast.events (application, stream, revision, checkpoint)
  WHERE checkpoint IS NOT NULL;

-- Commits without events (they only set or clear marks): they have a position too. The token is
-- the writer's, random: by it a writer whose connection broke learns that the commit is there.
CREATE TABLE holdfast.silent (
  application text COLLATE "C",
  token text COLLATE "C",
  position bigint NOT NULL,
  PRIMARY KEY (application, token)
);

-- Their place among the positions.
CREATE INDEX silent_by_position ON holdfast.silent (application, position);

-- ends_us counts microseconds since 1970 on the server's clock; 0: the lease was released. Such rows
-- are deleted now and then. The row without a name has the greatest epoch of all that were: an epoch
-- must never be given again, whatever the clock says by then.
CREATE TABLE holdfast.leases (
  application text COLLATE "C",
  name text COLLATE "C",
  owner text COLLATE "C" NOT NULL,
  epoch bigint NOT NULL,
  ends_us bigint NOT NULL,
  PRIMARY KEY (application, name)
);

-- Marks as commits set them. `about` is what the contract calls the index, `team` its group. A
-- claim is held by `owner` until `ends_us` on the server's clock.
CREATE TABLE holdfast.marks (
  application text COLLATE "C",
  about text COLLATE "C",
  key text COLLATE "C",
  due bigint NOT NULL,
  priority bigint NOT NULL,
  team text COLLATE "C" NOT NULL,
  owner text COLLATE "C",
  ends_us bigint,
  PRIMARY KEY (application, about, key)
);

-- The order in which marks are claimed.
CREATE INDEX marks_by_urgency ON holdfast.marks (application, about, priority DESC, due, key);

-- Snapshots and blobs. The crc covers kind and name too.
CREATE TABLE holdfast.objects (
  application text COLLATE "C",
  kind text COLLATE "C",
  name text COLLATE "C",
  crc integer NOT NULL,
  data bytea NOT NULL,
  PRIMARY KEY (application, kind, name)
);

-- For people: the log with times that can be read.
CREATE VIEW holdfast.history AS
  SELECT application, stream, revision, to_timestamp(time / 1000000.0) AS at, type, actor, payload,
    key, checkpoint, subject, position
  FROM holdfast.events;

-- The server's clock, the only one that judges leases, claims and due marks.
CREATE FUNCTION holdfast.now_us() RETURNS bigint LANGUAGE sql VOLATILE AS $$
  SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
$$;

-- The latest time that a commit may have. One that is further ahead of this clock would stay with its
-- stream for ever, and go on to every stream that is written with it.
CREATE FUNCTION holdfast.latest_us() RETURNS bigint LANGUAGE sql VOLATILE AS $$
  SELECT holdfast.now_us() + 60000000
$$;

-- The timeline that this server writes: it changes with every promotion of a standby.
CREATE FUNCTION holdfast.timeline() RETURNS text LANGUAGE sql VOLATILE AS $$
  SELECT left(pg_walfile_name(pg_current_wal_insert_lsn()), 8)
$$;

-- Every position below this one is final: no transaction that is still open, or has yet to begin,
-- can add an event there. It is asked for in the statement that reads, so both see one snapshot.
CREATE FUNCTION holdfast.horizon(p_application text) RETURNS bigint LANGUAGE sql STABLE AS $$
  SELECT (base + pg_snapshot_xmin(pg_current_snapshot())::text::bigint) * 4096
  FROM holdfast.stores WHERE application = p_application
$$;

-- The newest final position, 0 in an empty store. Stable: all of it sees the caller's snapshot.
CREATE FUNCTION holdfast.newest(p_application text) RETURNS bigint LANGUAGE plpgsql STABLE AS $$
DECLARE
  v_horizon bigint := holdfast.horizon(p_application);
  v_event bigint;
  v_silent bigint;
BEGIN
  SELECT position INTO v_event FROM holdfast.events
    WHERE application = p_application AND position < v_horizon ORDER BY position DESC LIMIT 1;
  SELECT position INTO v_silent FROM holdfast.silent
    WHERE application = p_application AND position < v_horizon ORDER BY position DESC LIMIT 1;
  RETURN greatest(v_event, v_silent, 0);
END
$$;

-- The heads of streams, in the order asked. A function, because its plan is kept: left to itself the
-- server would plan anew for each array.
CREATE FUNCTION holdfast.heads(p_application text, p_streams text[])
RETURNS TABLE (n bigint, revision bigint, link bytea, "time" bigint, "position" bigint, first bigint)
LANGUAGE plpgsql STABLE SET plan_cache_mode = force_generic_plan AS $$
BEGIN
  RETURN QUERY SELECT asked.n, e.revision, e.link, e.time, e.position, s.first
    FROM unnest(p_streams) WITH ORDINALITY AS asked (stream, n)
    LEFT JOIN holdfast.streams s ON s.application = p_application AND s.stream = asked.stream
    LEFT JOIN LATERAL (SELECT l.revision, l.link, l.time, l.position FROM holdfast.events l
      WHERE l.application = p_application AND l.stream = asked.stream
      ORDER BY l.revision DESC LIMIT 1) e ON true;
END
$$;

-- The events of a stream behind a revision, and the revision that the stream begins with.
CREATE FUNCTION holdfast.read(
  p_application text, p_stream text, p_after bigint, p_until bigint, p_limit bigint)
RETURNS TABLE (stream text, revision bigint, "time" bigint, type text, actor text, payload bytea,
  link bytea, key text, checkpoint text, subject text, "position" bigint, crc integer, first bigint)
LANGUAGE plpgsql STABLE SET plan_cache_mode = force_generic_plan AS $$
BEGIN
  RETURN QUERY SELECT e.stream, e.revision, e.time, e.type, e.actor,
      convert_to(e.payload, 'UTF8'), e.link, e.key, e.checkpoint, e.subject, e.position, e.crc,
      (SELECT s.first FROM holdfast.streams s
       WHERE s.application = p_application AND s.stream = p_stream)
    FROM holdfast.events e
    WHERE e.application = p_application AND e.stream = p_stream
      AND e.revision > p_after AND e.revision <= p_until
    ORDER BY e.revision LIMIT p_limit;
END
$$;

-- The base and the transaction id, from which a commit has its position. It is called when every
-- lock is held. The first commit behind a promotion moves the base on, by more transactions than
-- can have been lost; others that come at the same time wait for its row.
CREATE FUNCTION holdfast.place(p_application text) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_base bigint;
  v_timeline text;
BEGIN
  SELECT base, timeline INTO v_base, v_timeline
    FROM holdfast.stores WHERE application = p_application;
  IF v_base IS NULL THEN
    RAISE EXCEPTION 'there is no store of this application' USING ERRCODE = 'HF003';
  END IF;
  IF v_timeline <> holdfast.timeline() THEN
    UPDATE holdfast.stores SET base = base + 4294967296, timeline = holdfast.timeline()
      WHERE application = p_application AND timeline <> holdfast.timeline();
    SELECT base INTO v_base FROM holdfast.stores WHERE application = p_application;
  END IF;
  RETURN (v_base + pg_current_xact_id()::text::bigint) * 4096;
END
$$;

-- A stream's head as a refusal tells it: revision, link, time, position, first; NULL if none.
CREATE FUNCTION holdfast.head(p_application text, p_stream text) RETURNS jsonb
LANGUAGE sql STABLE AS $$
  SELECT jsonb_build_array(e.revision, encode(e.link, 'hex'), e.time, e.position, s.first)
  FROM holdfast.events e JOIN holdfast.streams s USING (application, stream)
  WHERE e.application = p_application AND e.stream = p_stream
  ORDER BY e.revision DESC LIMIT 1
$$;

-- Why a commit is refused: expired, duplicate, fenced, conflict, ahead, in this order; NULL if it is
-- accepted. The locks that `commit` has taken keep every answer true until the transaction ends. A
-- time that is ahead is accepted where each stream that is written has it already.
CREATE FUNCTION holdfast.judge(p_application text, p_commit jsonb) RETURNS jsonb
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_appends jsonb := p_commit -> 0;
  v_guards jsonb := p_commit -> 1;
  v_fence jsonb := p_commit -> 2;
  v_append jsonb;
  v_stream text;
  v_expected bigint;
  v_revision bigint;
  v_link bytea;
  v_time bigint := p_commit ->> 5;
BEGIN
  FOR i IN 0 .. jsonb_array_length(v_appends) - 1 LOOP
    v_append := v_appends -> i;
    IF (v_append ->> 6)::bigint <= holdfast.now_us() THEN
      RETURN jsonb_build_array('expired', v_append -> 0, v_append -> 1);
    END IF;
  END LOOP;
  FOR i IN 0 .. jsonb_array_length(v_appends) - 1 LOOP
    v_append := v_appends -> i;
    IF v_append ->> 4 IS NOT NULL THEN
      SELECT revision INTO v_revision FROM holdfast.events
        WHERE application = p_application AND stream = v_append ->> 0 AND key = v_append ->> 4;
      IF FOUND THEN
        RETURN jsonb_build_array('duplicate', v_append -> 0, v_append -> 1, v_revision);
      END IF;
    END IF;
  END LOOP;
  IF v_fence ->> 0 IS NOT NULL THEN
    PERFORM 1 FROM holdfast.leases
      WHERE application = p_application AND name = v_fence ->> 0 AND owner = v_fence ->> 1
        AND epoch = (v_fence ->> 2)::bigint AND ends_us > holdfast.now_us();
    IF NOT FOUND THEN
      RETURN jsonb_build_array('fenced', v_fence -> 0);
    END IF;
  END IF;
  FOR i IN 0 .. jsonb_array_length(v_appends) - 1 LOOP
    v_append := v_appends -> i;
    v_stream := v_append ->> 0;
    v_expected := (v_append ->> 1)::bigint;
    SELECT revision, link INTO v_revision, v_link FROM holdfast.events
      WHERE application = p_application AND stream = v_stream
      ORDER BY revision DESC LIMIT 1;
    IF v_revision IS NULL THEN
      IF v_expected = 0 OR (v_append ->> 2)::boolean THEN
        CONTINUE;
      END IF;
    ELSIF v_revision = v_expected AND NOT (v_append ->> 2)::boolean
      AND (v_append ->> 3 IS NULL OR v_link = decode(v_append ->> 3, 'hex')) THEN
      CONTINUE;
    END IF;
    RETURN jsonb_build_array(
      'conflict', v_stream, v_expected, holdfast.head(p_application, v_stream));
  END LOOP;
  FOR i IN 0 .. jsonb_array_length(v_guards) - 1 LOOP
    v_stream := v_guards -> i ->> 0;
    v_expected := (v_guards -> i ->> 1)::bigint;
    SELECT revision INTO v_revision FROM holdfast.events
      WHERE application = p_application AND stream = v_stream
      ORDER BY revision DESC LIMIT 1;
    IF coalesce(v_revision, 0) <> v_expected THEN
      RETURN jsonb_build_array(
        'conflict', v_stream, v_expected, holdfast.head(p_application, v_stream));
    END IF;
  END LOOP;
  IF v_time > holdfast.latest_us() AND NOT coalesce((p_commit ->> 8)::boolean, false) THEN
    FOR i IN 0 .. jsonb_array_length(v_appends) - 1 LOOP
      v_append := v_appends -> i;
      IF coalesce((SELECT e.time FROM holdfast.events e
          WHERE e.application = p_application AND e.stream = v_append ->> 0
          ORDER BY e.revision DESC LIMIT 1), 0) < v_time THEN
        RETURN jsonb_build_array('ahead', v_append -> 0, v_append -> 1, holdfast.now_us());
      END IF;
    END LOOP;
  END IF;
  RETURN NULL;
END
$$;

-- Sets and clears marks. Whatever claim there was on one of them ends.
CREATE FUNCTION holdfast.mark(p_application text, p_marks jsonb) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  DELETE FROM holdfast.marks m USING jsonb_array_elements(p_marks) AS c
    WHERE jsonb_array_length(c) = 2
      AND m.application = p_application AND m.about = c ->> 0 AND m.key = c ->> 1;
  INSERT INTO holdfast.marks AS m
    SELECT p_application, c ->> 0, c ->> 1, (c ->> 2)::bigint, (c ->> 3)::bigint, c ->> 4
      FROM jsonb_array_elements(p_marks) AS c WHERE jsonb_array_length(c) = 5
    ON CONFLICT (application, about, key) DO UPDATE
      SET due = excluded.due, priority = excluded.priority, team = excluded.team,
        owner = NULL, ends_us = NULL;
END
$$;

-- Writes an accepted commit at a position.
CREATE FUNCTION holdfast.write(p_application text, p_commit jsonb, p_position bigint) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_appends jsonb := p_commit -> 0;
  v_append jsonb;
  v_expected bigint;
  v_ordinal integer := 0;
BEGIN
  FOR i IN 0 .. jsonb_array_length(v_appends) - 1 LOOP
    v_append := v_appends -> i;
    v_expected := (v_append ->> 1)::bigint;
    IF v_expected = 0 OR (v_append ->> 2)::boolean THEN
      INSERT INTO holdfast.streams VALUES (p_application, v_append ->> 0, v_expected + 1);
    END IF;
    FOR j IN 0 .. jsonb_array_length(v_append -> 5) - 1 LOOP
      INSERT INTO holdfast.events VALUES (
        p_application, v_append ->> 0, v_expected + 1 + j, p_position, v_ordinal,
        (p_commit ->> 5)::bigint, v_append -> 5 -> j ->> 0, p_commit ->> 6,
        CASE WHEN j = 0 THEN v_append ->> 4 END,
        v_append -> 5 -> j ->> 3, v_append -> 5 -> j ->> 4, (v_append -> 5 -> j ->> 5)::integer,
        decode(v_append -> 5 -> j ->> 2, 'hex'), v_append -> 5 -> j ->> 1);
      v_ordinal := v_ordinal + 1;
    END LOOP;
  END LOOP;
  IF v_ordinal = 0 THEN
    INSERT INTO holdfast.silent VALUES (p_application, p_commit ->> 7, p_position);
  END IF;
  IF jsonb_array_length(p_commit -> 3) > 0 THEN
    PERFORM holdfast.mark(p_application, p_commit -> 3);
  END IF;
END
$$;

-- What every writer does first. Locks are taken in the order of their numbers, which is the same
-- for all; they are the transaction's, not the session's. A lock needs no transaction id, and none
-- is asked for before all are held: so along each stream positions grow with revisions. Statements
-- behind the locks see what was committed before they were granted (read committed). It returns
-- true, so that it can be called in an expression.
CREATE FUNCTION holdfast.enter(p_full boolean, p_locks bigint[], p_shared boolean[])
RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_none boolean;
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION 'default_transaction_isolation is %',
      current_setting('transaction_isolation') USING ERRCODE = 'HF001';
  END IF;
  IF NOT p_full THEN
    PERFORM set_config('synchronous_commit', 'off', true);
  ELSIF current_setting('synchronous_commit') = 'off' THEN
    RAISE EXCEPTION 'synchronous_commit is off' USING ERRCODE = 'HF002';
  END IF;
  FOR i IN 1 .. cardinality(p_locks) LOOP
    -- Asked as a question, it is an expression, which costs a tenth of a statement.
    IF p_shared[i] THEN
      v_none := pg_advisory_xact_lock_shared(p_locks[i]) IS NULL;
    ELSE
      v_none := pg_advisory_xact_lock(p_locks[i]) IS NULL;
    END IF;
  END LOOP;
  RETURN true;
END
$$;

-- The most common case of all: one event behind another. The answer is its position, or why it does
-- not fit, as `judge` says it.
CREATE FUNCTION holdfast.commit_one(
  p_application text, p_full boolean, p_locks bigint[], p_shared boolean[], p_stream text,
  p_expected bigint, p_previous bytea, p_time bigint, p_type text, p_actor text, p_key text,
  p_checkpoint text, p_subject text, p_crc integer, p_link bytea, p_payload text,
  p_expires_us bigint)
RETURNS text LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_entered boolean := holdfast.enter(p_full, p_locks, p_shared);
  v_revision bigint;
  v_link bytea;
  v_time bigint;
  v_position bigint;
  v_fits boolean := p_expires_us IS NULL OR p_expires_us > holdfast.now_us();
BEGIN
  IF v_fits AND p_key IS NOT NULL THEN
    PERFORM 1 FROM holdfast.events
      WHERE application = p_application AND stream = p_stream AND key = p_key;
    v_fits := NOT FOUND;
  END IF;
  IF v_fits THEN
    SELECT revision, link, time INTO v_revision, v_link, v_time FROM holdfast.events
      WHERE application = p_application AND stream = p_stream
      ORDER BY revision DESC LIMIT 1;
    v_fits := v_revision = p_expected AND (p_previous IS NULL OR v_link = p_previous)
      AND (p_time <= v_time OR p_time <= holdfast.latest_us());
  END IF;
  IF v_fits IS NOT TRUE THEN
    RETURN holdfast.judge(p_application, jsonb_build_array(jsonb_build_array(jsonb_build_array(
      p_stream, p_expected, false, encode(p_previous, 'hex'), p_key, NULL, p_expires_us)),
      '[]'::jsonb, '[]'::jsonb, NULL, NULL, p_time))::text;
  END IF;
  v_position := holdfast.place(p_application) + 1;
  INSERT INTO holdfast.events VALUES (
    p_application, p_stream, p_expected + 1, v_position, 0, p_time, p_type, p_actor, p_key,
    p_checkpoint, p_subject, p_crc, p_link, p_payload);
  RETURN v_position;
END
$$;

-- The common case: a batch of which every commit is accepted. One call, one transaction, a handful
-- of statements however many commits there are. Whoever sends it has made sure that the commits fit
-- each other; what they ask of the store is checked here, all at once. If anything does not fit,
-- nothing is written, the answer is NULL, and the batch is sent again to `commit_each`.
--
-- heads: [stream, expected revision, link or null]; keys: [stream, key]; fences: [name, owner,
-- epoch]; new: [stream, first]; records: [number of the commit, stream, revision, ordinal, time,
-- type, actor, key, checkpoint, subject, crc, link, payload]; silent: [number, token]; marks as
-- `mark` takes them; watched: names. The answer is the position before the first commit, and the
-- watched streams' revisions before the batch. p_expires_us is the earliest end of a written stream,
-- p_time the latest time of its commits that are not copies.
CREATE FUNCTION holdfast.commit_all(
  p_application text, p_full boolean, p_locks bigint[], p_shared boolean[], p_heads jsonb,
  p_records jsonb, p_new jsonb, p_keys jsonb, p_fences jsonb, p_silent jsonb, p_marks jsonb,
  p_watched jsonb, p_expires_us bigint, p_time bigint)
RETURNS text LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_place bigint;
  v_news bigint[];
  v_entered boolean := holdfast.enter(p_full, p_locks, p_shared);
BEGIN
  IF p_expires_us <= holdfast.now_us() OR p_time > holdfast.latest_us() THEN
    RETURN NULL;
  END IF;
  IF EXISTS (SELECT 1 FROM jsonb_array_elements(p_heads) AS h LEFT JOIN LATERAL (
      SELECT revision, link FROM holdfast.events
      WHERE application = p_application AND stream = h ->> 0
      ORDER BY revision DESC LIMIT 1) AS e ON true
    WHERE coalesce(e.revision, 0) <> (h ->> 1)::bigint
      OR (h ->> 2 IS NOT NULL AND e.link <> decode(h ->> 2, 'hex'))) THEN
    RETURN NULL;
  END IF;
  IF p_keys IS NOT NULL THEN
    IF EXISTS (SELECT 1 FROM jsonb_array_elements(p_keys) AS k WHERE (
        SELECT revision FROM holdfast.events
        WHERE application = p_application AND stream = k ->> 0 AND key = k ->> 1) IS NOT NULL) THEN
      RETURN NULL;
    END IF;
  END IF;
  IF p_fences IS NOT NULL THEN
    IF EXISTS (SELECT 1 FROM jsonb_array_elements(p_fences) AS f WHERE NOT EXISTS (
        SELECT 1 FROM holdfast.leases
        WHERE application = p_application AND name = f ->> 0 AND owner = f ->> 1
          AND epoch = (f ->> 2)::bigint AND ends_us > holdfast.now_us())) THEN
      RETURN NULL;
    END IF;
  END IF;
  v_place := holdfast.place(p_application);
  IF p_watched IS NOT NULL THEN
    -- Not by `heads`, which costs as much as all the rest of a small batch.
    v_news := ARRAY(SELECT coalesce((SELECT revision FROM holdfast.events
        WHERE application = p_application AND stream = w
        ORDER BY revision DESC LIMIT 1), 0)
      FROM jsonb_array_elements_text(p_watched) WITH ORDINALITY AS watched (w, n) ORDER BY n);
  END IF;
  IF p_new IS NOT NULL THEN
    INSERT INTO holdfast.streams
      SELECT p_application, n ->> 0, (n ->> 1)::bigint FROM jsonb_array_elements(p_new) AS n;
  END IF;
  IF p_records IS NOT NULL THEN
    INSERT INTO holdfast.events SELECT p_application, r ->> 1, (r ->> 2)::bigint,
        v_place + (r ->> 0)::integer, (r ->> 3)::integer, (r ->> 4)::bigint, r ->> 5, r ->> 6,
        r ->> 7, r ->> 8, r ->> 9, (r ->> 10)::integer, decode(r ->> 11, 'hex'), r ->> 12
      FROM jsonb_array_elements(p_records) AS r;
  END IF;
  IF p_silent IS NOT NULL THEN
    INSERT INTO holdfast.silent SELECT p_application, s ->> 1, v_place + (s ->> 0)::integer
      FROM jsonb_array_elements(p_silent) AS s;
  END IF;
  IF p_marks IS NOT NULL THEN
    PERFORM holdfast.mark(p_application, p_marks);
  END IF;
  RETURN jsonb_build_array(v_place, v_news)::text;
END
$$;

-- The general case: each commit of a batch is judged and written behind the one before it.
--
-- A commit is [appends, guards, fence, marks, watched, time, actor, token, whether it is a copy], an
-- append is [stream, expected, fork, previous link, key, records, end or null], a record is [type,
-- payload, link, checkpoint, subject, crc]. The answer has for each commit [position, revisions of
-- the watched streams] or [reason, stream, …]. The token of a commit without events is looked for first: a batch whose
-- answer was lost is sent again.
CREATE FUNCTION holdfast.commit_each(
  p_application text, p_full boolean, p_locks bigint[], p_shared boolean[], p_batch jsonb)
RETURNS text LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_commit jsonb;
  v_answer jsonb;
  v_answers jsonb := '[]';
  v_position bigint;
  v_news jsonb;
  v_entered boolean := holdfast.enter(p_full, p_locks, p_shared);
BEGIN
  FOR i IN 0 .. jsonb_array_length(p_batch) - 1 LOOP
    v_commit := p_batch -> i;
    v_answer := NULL;
    IF jsonb_array_length(v_commit -> 0) = 0 THEN
      SELECT jsonb_build_array(position, NULL) INTO v_answer FROM holdfast.silent
        WHERE application = p_application AND token = v_commit ->> 7;
    END IF;
    IF v_answer IS NULL THEN
      v_answer := holdfast.judge(p_application, v_commit);
      IF v_answer IS NULL THEN
        v_position := coalesce(v_position, holdfast.place(p_application)) + 1;
        PERFORM holdfast.write(p_application, v_commit, v_position);
        v_answer := jsonb_build_array(v_position, NULL);
      END IF;
    END IF;
    IF jsonb_array_length(v_commit -> 4) > 0 AND jsonb_typeof(v_answer -> 0) = 'number' THEN
      SELECT jsonb_agg(coalesce(h.revision, 0) ORDER BY h.n) INTO v_news
        FROM holdfast.heads(p_application,
          ARRAY(SELECT jsonb_array_elements_text(v_commit -> 4))) AS h;
      v_answer := jsonb_set(v_answer, '{1}', v_news);
    END IF;
    v_answers := v_answers || jsonb_build_array(v_answer);
  END LOOP;
  RETURN v_answers::text;
END
$$;

-- Takes a lease that nobody else holds. Taken anew its epoch is greater than any it had, also where
-- the row before was deleted (the row without a name is read later than that was looked for, so it
-- has the epoch), or was lost in a failover: it is at least the server's milliseconds. The lock is
-- the one that a commit under this lease holds until its end.
CREATE FUNCTION holdfast.acquire(
  p_application text, p_lock bigint, p_name text, p_owner text, p_ttl_us bigint)
RETURNS SETOF holdfast.leases LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_now bigint;
  v_held holdfast.leases;
BEGIN
  PERFORM pg_advisory_xact_lock(p_lock);
  v_now := holdfast.now_us();
  SELECT * INTO v_held FROM holdfast.leases WHERE application = p_application AND name = p_name;
  IF v_held.ends_us > v_now THEN
    IF v_held.owner = p_owner THEN
      RETURN QUERY UPDATE holdfast.leases SET ends_us = greatest(ends_us, v_now + p_ttl_us)
        WHERE application = p_application AND name = p_name RETURNING *;
    END IF;
    RETURN;
  END IF;
  RETURN QUERY INSERT INTO holdfast.leases AS l VALUES (p_application, p_name, p_owner,
      greatest(v_now / 1000, 1 + coalesce(v_held.epoch, (SELECT f.epoch FROM holdfast.leases f
        WHERE f.application = p_application AND f.name = ''), 0)), v_now + p_ttl_us)
    ON CONFLICT (application, name) DO UPDATE
      SET owner = excluded.owner, epoch = excluded.epoch, ends_us = excluded.ends_us
    RETURNING l.*;
END
$$;

-- Moves the ends of those of the leases that are still held as the arrays say. The locks come in the
-- order of their numbers. They are shared: a commit under way moves no lease, and must not hold up
-- the renewal of many; who takes a lease holds its lock alone. The clock is asked behind the locks.
CREATE FUNCTION holdfast.extend(
  p_application text, p_locks bigint[], p_names text[], p_owners text[], p_epochs bigint[],
  p_ttl_us bigint)
RETURNS SETOF holdfast.leases LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_none boolean;
  v_now bigint;
BEGIN
  FOR i IN 1 .. cardinality(p_locks) LOOP
    v_none := pg_advisory_xact_lock_shared(p_locks[i]) IS NULL;
  END LOOP;
  v_now := holdfast.now_us();
  RETURN QUERY UPDATE holdfast.leases l SET ends_us = greatest(l.ends_us, v_now + p_ttl_us)
    FROM unnest(p_names, p_owners, p_epochs) AS asked (name, owner, epoch)
    WHERE l.application = p_application AND l.name = asked.name AND l.owner = asked.owner
      AND l.epoch = asked.epoch AND l.ends_us > v_now
    RETURNING l.*;
END
$$;
