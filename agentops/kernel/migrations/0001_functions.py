"""The clock, the months of partitions, and the refusal that append-only and final rows use."""

from django.db import migrations

from agentops.kernel.clock import PLAIN_SOURCE

CLOCK = f"CREATE FUNCTION agentops_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS '{PLAIN_SOURCE}'"

REFUSE = """
CREATE FUNCTION agentops_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION '% of % is refused by rule %', TG_OP, TG_TABLE_NAME, TG_NAME USING ERRCODE = 'restrict_violation';
END $$;
"""

REGISTERS = """
CREATE TABLE kernel_partitioned (name text PRIMARY KEY);
CREATE TABLE kernel_append_only (name text PRIMARY KEY);
"""

# The lowest UUIDv7 of a month: 48 bits of milliseconds, then zeros.
PARTITIONS = """
CREATE FUNCTION agentops_month_floor(at timestamptz) RETURNS uuid LANGUAGE sql IMMUTABLE AS $$
  SELECT (lpad(to_hex((extract(epoch FROM date_trunc('month', at, 'UTC')) * 1000)::bigint), 12, '0')
          || '00000000000000000000')::uuid
$$;
CREATE FUNCTION agentops_open_partitions(ahead integer) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp SET timezone = 'UTC' AS $$
DECLARE
  parent text;
  opened integer := 0;
  month timestamptz;
  part text;
BEGIN
  FOR parent IN SELECT name FROM kernel_partitioned ORDER BY name LOOP
    FOR step IN 0..ahead LOOP
      month := date_trunc('month', clock_timestamp(), 'UTC') + make_interval(months => step);
      part := parent || to_char(month AT TIME ZONE 'UTC', '_"y"YYYY"m"MM');
      IF to_regclass(part) IS NULL THEN
        EXECUTE format('CREATE TABLE %I PARTITION OF %I FOR VALUES FROM (%L) TO (%L)', part, parent,
          agentops_month_floor(month), agentops_month_floor(month + interval '1 month'));
        IF EXISTS (SELECT 1 FROM kernel_append_only WHERE name = parent) THEN
          EXECUTE format('CREATE TRIGGER %I BEFORE TRUNCATE ON %I FOR EACH STATEMENT'
            ' EXECUTE FUNCTION agentops_refuse_change()', part || '_no_truncate', part);
        END IF;
        opened := opened + 1;
      END IF;
    END LOOP;
  END LOOP;
  RETURN opened;
END $$;
"""

BACK = """
DROP FUNCTION agentops_open_partitions(integer); DROP FUNCTION agentops_month_floor(timestamptz);
DROP TABLE kernel_append_only; DROP TABLE kernel_partitioned;
DROP FUNCTION agentops_refuse_change(); DROP FUNCTION agentops_now();
"""


class Migration(migrations.Migration):
    initial = True
    dependencies = []
    operations = [migrations.RunSQL(CLOCK + ";" + REFUSE + REGISTERS + PARTITIONS, BACK)]
