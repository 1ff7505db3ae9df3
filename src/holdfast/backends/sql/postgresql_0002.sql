-- Format 2: events have `meta`, what is known of them beside their data, as the text of one JSON
-- object, exactly as committed. It is NULL in every row of format 1, and no such row changes. The
-- crc covers it where it is there. This file runs in one transaction, in a new schema behind
-- format 1, and in an old one before the first event with meta is written. The schema has one
-- format for all its applications.
--
-- What a handle of format 1 calls stays as it is: it goes on to write events without meta, and finds
-- that one with meta fails its checksum. It cannot be opened again: the number of this file is
-- greater than what it knows.

ALTER TABLE holdfast.events ADD COLUMN meta text COLLATE "C";

CREATE OR REPLACE VIEW holdfast.history AS
  SELECT application, stream, revision, to_timestamp(time / 1000000.0) AS at, type, actor, payload,
    key, checkpoint, subject, position, meta
  FROM holdfast.events;

-- The events of a stream behind a revision, the revision that the stream begins with, and meta.
CREATE FUNCTION holdfast.read_with_meta(
  p_application text, p_stream text, p_after bigint, p_until bigint, p_limit bigint)
RETURNS TABLE (stream text, revision bigint, "time" bigint, type text, actor text, payload bytea,
  link bytea, key text, checkpoint text, subject text, "position" bigint, crc integer,
  first bigint, meta text)
LANGUAGE plpgsql STABLE SET plan_cache_mode = force_generic_plan AS $$
BEGIN
  RETURN QUERY SELECT e.stream, e.revision, e.time, e.type, e.actor,
      convert_to(e.payload, 'UTF8'), e.link, e.key, e.checkpoint, e.subject, e.position, e.crc,
      (SELECT s.first FROM holdfast.streams s
       WHERE s.application = p_application AND s.stream = p_stream), e.meta
    FROM holdfast.events e
    WHERE e.application = p_application AND e.stream = p_stream
      AND e.revision > p_after AND e.revision <= p_until
    ORDER BY e.revision LIMIT p_limit;
END
$$;

-- Writes an accepted commit at a position: as in format 1, and a record may end in its meta.
CREATE OR REPLACE FUNCTION holdfast.write(p_application text, p_commit jsonb, p_position bigint) RETURNS void
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
        decode(v_append -> 5 -> j ->> 2, 'hex'), v_append -> 5 -> j ->> 1,
        v_append -> 5 -> j ->> 6);
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

-- The common case: as in format 1, and a record may end in its meta.
CREATE OR REPLACE FUNCTION holdfast.commit_all(
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
        r ->> 7, r ->> 8, r ->> 9, (r ->> 10)::integer, decode(r ->> 11, 'hex'), r ->> 12,
        r ->> 13
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
