-- How a commit is written, in every format from 2 on: one encoding, and one function that takes it.
-- The file runs behind those of the tables, in the same transaction, whenever a store is opened for
-- writing that has it not. Its digest is the comment of its function, not a row of `migrations`: it
-- changes no table, and a worker of an earlier release refuses numbers that it does not know. What
-- such a worker calls (`commit_one`, `commit_all`, `commit_each`) stays as it is and takes the same
-- locks, so both write side by side. A later file gives its functions other names, for that reason.

-- Writes each commit of a batch that can be accepted, behind those before it, and says of each its
-- position or why it is refused. One call, one transaction. What is asked of the store is checked
-- for the whole batch at once, and written at once: a handful of statements, however many commits
-- there are. If anything does not fit, the same statements run for one commit after another.
--
-- Each list has for each commit the list of its rows, and is NULL where no commit has any. An
-- `after` is the number of the commit of this batch, counted from 0, that wrote to the stream last,
-- -1 if none did: what one of this batch has written is known to whoever sends it.
--
-- heads: [stream, newest revision, newest link or null, after, end or null, time or null], first of
-- the streams that are written, then of those that are only read; of a stream that begins the
-- newest revision is 0; the time is that of a commit whose time is judged. records: [number of the
-- commit, stream, revision, ordinal, time, type, actor, key, checkpoint, subject, crc, link, line,
-- meta]; the payloads are lines, counted from 1. p_one says whether the batch is one event behind
-- another and nothing else, p_keyed whether a record has a key. p_ends_us is the earliest of the
-- ends, p_time the latest of the times.
--
-- What most batches have not is in p_more: the lists new: [stream, first]; fences: [name, owner,
-- epoch]; silent: [number, token]; marks: [mark as `mark` takes it, number of the commit of this
-- batch that sets it again, or null]; watched: [stream, after, revision], where the commit itself
-- counts too; and misfits, where what is known of the batch does not fit.
--
-- The answer is the position of commit 0; commit n has the position n behind that. Where there is
-- more to tell it is [that position, others, news]. The others, each with its number, have no such
-- position, but a reason, or ['there', position] where a commit without events was written by an
-- earlier call. Reasons come in this order: ['expired', n], ['duplicate', stream, revision],
-- ['fenced', name], ['conflict', n, head], ['ahead', n, time]; n is the number of the row of heads,
-- from 1. The news are the revisions of what is watched, one commit after another, but for the
-- others.
CREATE OR REPLACE FUNCTION holdfast.commit(
  p_application text, p_full boolean, p_locks bigint[], p_shared boolean[], p_heads jsonb,
  p_records jsonb, p_payloads text, p_one boolean, p_keyed boolean, p_ends_us bigint,
  p_time bigint, p_more jsonb)
RETURNS text LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_entered boolean := holdfast.enter(p_full, p_locks, p_shared);
  v_record jsonb;
  v_revision bigint;
  v_link bytea;
  v_time bigint;
  v_taken boolean;
  v_place bigint;
BEGIN
  -- The most common case of all, in few statements, variables and expressions: the server prepares
  -- each of them anew in every transaction. If it does not fit, what is below says why.
  IF p_one THEN
    SELECT revision, link, time INTO v_revision, v_link, v_time FROM holdfast.events
      WHERE application = p_application AND stream = p_heads #>> '{0,0,0}'
      ORDER BY revision DESC LIMIT 1;
    IF v_revision = (p_heads #>> '{0,0,1}')::bigint
      AND v_link = coalesce(decode(p_heads #>> '{0,0,2}', 'hex'), v_link)
      AND (p_ends_us IS NULL OR p_ends_us > holdfast.now_us())
      AND (p_time <= v_time OR p_time <= holdfast.latest_us())
    THEN
      IF p_keyed THEN
        PERFORM 1 FROM holdfast.events WHERE application = p_application
          AND stream = p_heads #>> '{0,0,0}' AND key = p_records #>> '{0,0,7}';
        v_taken := FOUND;
      END IF;
      IF v_taken IS NOT TRUE THEN
        -- As `place` does, whose call costs as much again, while the base need not move on.
        SELECT (base + pg_current_xact_id()::text::bigint) * 4096 + 1 INTO v_place
          FROM holdfast.stores
          WHERE application = p_application AND timeline = holdfast.timeline();
        v_place := coalesce(v_place, holdfast.place(p_application) + 1);
        v_record := p_records #> '{0,0}';
        INSERT INTO holdfast.events VALUES (
          p_application, v_record ->> 1, (v_record ->> 2)::bigint, v_place, 0,
          (v_record ->> 4)::bigint, v_record ->> 5, v_record ->> 6, v_record ->> 7, v_record ->> 8,
          v_record ->> 9, (v_record ->> 10)::integer, decode(v_record ->> 11, 'hex'), p_payloads,
          v_record ->> 13);
        RETURN v_place;
      END IF;
    END IF;
  END IF;
  DECLARE
    v_count integer := jsonb_array_length(p_heads);
    v_from integer := 0;
    v_to integer := CASE WHEN p_more -> 'misfits' IS NULL THEN v_count ELSE 1 END - 1;
    v_new jsonb := p_more -> 'new';
    v_fences jsonb := p_more -> 'fences';
    v_silent jsonb := p_more -> 'silent';
    v_marks jsonb := p_more -> 'marks';
    v_watched jsonb := p_more -> 'watched';
    v_rows jsonpath := '$[*][*]'::jsonpath;
    -- One empty payload is one line; of an empty text string_to_array makes none.
    v_payloads text[] := CASE p_payloads WHEN '' THEN ARRAY['']
      ELSE string_to_array(p_payloads, E'\n') END;
    v_answer jsonb;
    v_others jsonb[] := '{}';
    v_news bigint[] := '{}';
  BEGIN
    WHILE v_from < v_count LOOP
      IF v_to - v_from + 1 < v_count THEN
        v_rows := '$[' || v_from || '][*]';
      END IF;
      v_answer := NULL;
      IF v_silent IS NOT NULL THEN
        SELECT jsonb_build_array('there', s.position) INTO v_answer
          FROM jsonb_path_query(v_silent, v_rows) AS t
          JOIN holdfast.silent s ON s.application = p_application AND s.token = t ->> 1 LIMIT 1;
      END IF;
      IF v_answer IS NULL AND p_ends_us <= holdfast.now_us() THEN
        SELECT jsonb_build_array('expired', n) INTO v_answer
          FROM jsonb_path_query(p_heads, v_rows) WITH ORDINALITY AS asked (h, n)
          WHERE (h ->> 4)::bigint <= holdfast.now_us() ORDER BY n LIMIT 1;
      END IF;
      IF v_answer IS NULL AND p_keyed THEN
        SELECT jsonb_build_array('duplicate', r -> 1, e.revision) INTO v_answer
          FROM jsonb_path_query(p_records, v_rows) WITH ORDINALITY AS asked (r, n),
            LATERAL (SELECT revision FROM holdfast.events WHERE application = p_application
              AND stream = r ->> 1 AND key = r ->> 7 LIMIT 1) AS e
          ORDER BY n LIMIT 1;
      END IF;
      IF v_answer IS NULL AND v_fences IS NOT NULL THEN
        SELECT jsonb_build_array('fenced', f -> 0) INTO v_answer
          FROM jsonb_path_query(v_fences, v_rows) AS f
          WHERE NOT EXISTS (SELECT 1 FROM holdfast.leases
            WHERE application = p_application AND name = f ->> 0 AND owner = f ->> 1
              AND epoch = (f ->> 2)::bigint AND ends_us > holdfast.now_us()) LIMIT 1;
      END IF;
      IF v_answer IS NULL THEN
        SELECT jsonb_build_array('conflict', n, holdfast.head(p_application, h ->> 0))
          INTO v_answer
          FROM jsonb_path_query(p_heads, v_rows) WITH ORDINALITY AS asked (h, n)
          LEFT JOIN LATERAL (SELECT revision, link FROM holdfast.events
            WHERE application = p_application AND stream = h ->> 0
            ORDER BY revision DESC LIMIT 1) AS e ON true
          WHERE (h ->> 3)::integer < v_from AND (coalesce(e.revision, 0) <> (h ->> 1)::bigint
            OR e.link <> decode(h ->> 2, 'hex'))
          ORDER BY n LIMIT 1;
      END IF;
      IF v_answer IS NULL AND p_time > holdfast.latest_us() THEN
        SELECT jsonb_build_array('ahead', n, holdfast.now_us()) INTO v_answer
          FROM jsonb_path_query(p_heads, v_rows) WITH ORDINALITY AS asked (h, n)
          WHERE (h ->> 5)::bigint > holdfast.latest_us()
            AND (v_to > v_from OR (h ->> 5)::bigint > coalesce((SELECT time FROM holdfast.events
              WHERE application = p_application AND stream = h ->> 0
              ORDER BY revision DESC LIMIT 1), 0))
          ORDER BY n LIMIT 1;
      END IF;
      IF v_answer IS NOT NULL THEN
        IF v_to > v_from THEN
          v_to := v_from;
        ELSE
          v_others := v_others || jsonb_build_array(v_from, v_answer);
          v_from := v_from + 1;
          v_to := v_from;
        END IF;
        CONTINUE;
      END IF;
      v_place := coalesce(v_place, holdfast.place(p_application) + 1);
      IF v_watched IS NOT NULL THEN
        -- Not by `heads`, which costs as much as all the rest of a small batch.
        v_news := v_news || ARRAY(SELECT CASE WHEN (w ->> 1)::integer >= v_from
            THEN (w ->> 2)::bigint
            ELSE coalesce((SELECT revision FROM holdfast.events
              WHERE application = p_application AND stream = w ->> 0
              ORDER BY revision DESC LIMIT 1), 0) END
          FROM jsonb_path_query(v_watched, v_rows) WITH ORDINALITY AS asked (w, n) ORDER BY n);
      END IF;
      IF v_new IS NOT NULL THEN
        INSERT INTO holdfast.streams SELECT p_application, s ->> 0, (s ->> 1)::bigint
          FROM jsonb_path_query(v_new, v_rows) AS s;
      END IF;
      IF p_records IS NOT NULL THEN
        INSERT INTO holdfast.events SELECT p_application, r ->> 1, (r ->> 2)::bigint,
            v_place + (r ->> 0)::integer, (r ->> 3)::integer, (r ->> 4)::bigint, r ->> 5, r ->> 6,
            r ->> 7, r ->> 8, r ->> 9, (r ->> 10)::integer, decode(r ->> 11, 'hex'),
            v_payloads[(r ->> 12)::integer], r ->> 13
          FROM jsonb_path_query(p_records, v_rows) AS r;
      END IF;
      IF v_silent IS NOT NULL THEN
        INSERT INTO holdfast.silent SELECT p_application, t ->> 1, v_place + (t ->> 0)::integer
          FROM jsonb_path_query(v_silent, v_rows) AS t;
      END IF;
      IF v_marks IS NOT NULL THEN
        PERFORM holdfast.mark(p_application, (SELECT coalesce(jsonb_agg(m -> 0), '[]')
          FROM jsonb_path_query(v_marks, v_rows) AS m
          WHERE coalesce((m ->> 1)::integer > v_to, true)));
      END IF;
      v_from := v_to + 1;
      v_to := v_from;
    END LOOP;
    IF v_others = '{}' AND v_news = '{}' THEN
      RETURN v_place;
    END IF;
    RETURN jsonb_build_array(v_place, v_others, v_news)::text;
  END;
END
$$;
