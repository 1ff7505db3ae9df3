-- Tenants in a schema of their own, behind format 2. Rows of all tenants are in the same tables; a
-- tenant's `application` is the name of its role, so a row says by itself whose it is, and no
-- setting of a session takes part in the decision. The statements run in one transaction, as the
-- role that will own the tables: the administrator of the tenants.
--
-- A table that is added to this schema later has no row security, and whoever opens a tenant's
-- store is then refused until it has.

-- One row: which role has the rights that every tenant's role is given by being a member of it.
CREATE TABLE holdfast.tenancy (
  number integer PRIMARY KEY,
  digest text NOT NULL,
  members text COLLATE "C" NOT NULL
);

-- One row per tenant. The numbers of its advisory locks are made from `locks`, which is random: so
-- nobody else can compute one. `settings` is the text of a JSON object.
CREATE TABLE holdfast.tenants (
  application text COLLATE "C" PRIMARY KEY,
  name text COLLATE "C" NOT NULL UNIQUE,
  made_us bigint NOT NULL,
  locks text NOT NULL,
  settings text NOT NULL,
  state text NOT NULL
);

-- Receipts of tenants that were removed, without their names.
CREATE TABLE holdfast.removed_tenants (
  application text COLLATE "C" PRIMARY KEY,
  removed_us bigint NOT NULL,
  receipt text NOT NULL
);

-- The first policy is every tenant's: only its own rows, to see and to write. The second lets those
-- through who may act as the owner of the tables. It asks for the role of the session, so that a
-- view or a function of the owner's opens nothing to a tenant. FORCE has the owner judged, too.
DO $$
DECLARE
  v_table text;
BEGIN
  FOREACH v_table IN ARRAY ARRAY['stores', 'streams', 'events', 'silent', 'leases', 'marks',
      'objects', 'tenants', 'removed_tenants'] LOOP
    EXECUTE format('ALTER TABLE "holdfast".%I ENABLE ROW LEVEL SECURITY', v_table);
    EXECUTE format('ALTER TABLE "holdfast".%I FORCE ROW LEVEL SECURITY', v_table);
    EXECUTE format('CREATE POLICY tenant ON "holdfast".%I USING (application = current_user::text)
      WITH CHECK (application = current_user::text)', v_table);
    EXECUTE format('CREATE POLICY administrator ON "holdfast".%I TO CURRENT_USER
      USING (pg_has_role(current_user, %L, ''MEMBER''))', v_table, current_user);
  END LOOP;
END
$$;

-- Whoever may delete from a table, or update the whole of it, may also lock it against everybody. So
-- tenants are given single columns to update, and delete by these functions alone. They run with the
-- rights of the owner, who is let through by row security: each looks itself at whose the rows are.
CREATE FUNCTION holdfast.check_tenant(p_application text) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF p_application IS DISTINCT FROM session_user::text
    AND NOT pg_has_role(session_user, current_user, 'MEMBER') THEN
    RAISE EXCEPTION 'this is another tenant''s' USING ERRCODE = '42501';
  END IF;
END
$$;

CREATE FUNCTION holdfast.delete_marks(p_application text, p_marks jsonb) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM holdfast.check_tenant(p_application);
  DELETE FROM holdfast.marks m USING jsonb_array_elements(p_marks) AS c
    WHERE jsonb_array_length(c) = 2
      AND m.application = p_application AND m.about = c ->> 0 AND m.key = c ->> 1;
END
$$;

CREATE FUNCTION holdfast.delete_object(p_application text, p_kind text, p_name text) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM holdfast.check_tenant(p_application);
  DELETE FROM holdfast.objects
    WHERE application = p_application AND kind = p_kind AND name = p_name;
END
$$;

-- Rows of released leases; the greatest epoch of them stays in the row without a name.
CREATE FUNCTION holdfast.forget_leases(p_application text, p_limit bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM holdfast.check_tenant(p_application);
  WITH gone AS (DELETE FROM holdfast.leases WHERE application = p_application
    AND name IN (SELECT name FROM holdfast.leases WHERE application = p_application
      AND ends_us = 0 AND name <> '' LIMIT p_limit FOR UPDATE SKIP LOCKED) RETURNING epoch)
  INSERT INTO holdfast.leases AS l SELECT p_application, '', '', max(epoch), 0 FROM gone
    HAVING count(*) > 0
    ON CONFLICT (application, name) DO UPDATE SET epoch = greatest(l.epoch, excluded.epoch);
END
$$;

-- Sets and clears marks: as in format 1, and what is cleared is deleted by the function above.
CREATE OR REPLACE FUNCTION holdfast.mark(p_application text, p_marks jsonb) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  PERFORM holdfast.delete_marks(p_application, p_marks);
  INSERT INTO holdfast.marks AS m
    SELECT p_application, c ->> 0, c ->> 1, (c ->> 2)::bigint, (c ->> 3)::bigint, c ->> 4
      FROM jsonb_array_elements(p_marks) AS c WHERE jsonb_array_length(c) = 5
    ON CONFLICT (application, about, key) DO UPDATE
      SET due = excluded.due, priority = excluded.priority, team = excluded.team,
        owner = NULL, ends_us = NULL;
END
$$;
