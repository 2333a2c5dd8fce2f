-- The inbox: submissions as they were received, and the contacts and messages made of them.
-- It runs within one transaction and can be repeated.

CREATE TABLE IF NOT EXISTS inbox_contacts (
    contact_id  INTEGER PRIMARY KEY,
    client_slug TEXT    NOT NULL,
    -- Trimmed and in lower case.
    email       TEXT,
    -- In the format E.164 if possible.
    phone       TEXT,
    name        TEXT,
    created_at  INTEGER NOT NULL,
    CHECK (email IS NOT NULL OR phone IS NOT NULL)
) STRICT;
CREATE UNIQUE INDEX IF NOT EXISTS inbox_contacts_by_email
    ON inbox_contacts (client_slug, email) WHERE email IS NOT NULL;
CREATE INDEX IF NOT EXISTS inbox_contacts_by_phone ON inbox_contacts (client_slug, phone) WHERE phone IS NOT NULL;
-- Contacts with different emails may share a phone. Of contacts without an email, one has the phone.
CREATE UNIQUE INDEX IF NOT EXISTS inbox_contacts_of_phone
    ON inbox_contacts (client_slug, phone) WHERE email IS NULL AND phone IS NOT NULL;
CREATE INDEX IF NOT EXISTS inbox_contacts_of_client ON inbox_contacts (client_slug, contact_id);

CREATE TABLE IF NOT EXISTS inbox_submissions (
    submission_seq INTEGER PRIMARY KEY,
    id             TEXT    NOT NULL UNIQUE,
    client_slug    TEXT    NOT NULL,
    channel        TEXT    NOT NULL CHECK (channel IN ('form', 'sms', 'voice', 'email')),
    -- The bytes as they were received.
    payload        BLOB    NOT NULL,
    source_url     TEXT,
    -- The SHA-256 of client and idempotency key, if the request had one, and the SHA-256 of the content.
    key_sha256     BLOB,
    content_sha256 BLOB    NOT NULL,
    created_at     INTEGER NOT NULL,
    processed_at   INTEGER,
    -- How often processing failed, and the last error.
    tries          INTEGER NOT NULL DEFAULT 0,
    error          TEXT,
    -- Set while the submission waits to be processed. A row with neither this nor processed_at is parked.
    next_try_at    INTEGER,
    message_id     INTEGER,
    CHECK ((processed_at IS NULL) = (message_id IS NULL)),
    CHECK (processed_at IS NULL OR next_try_at IS NULL)
) STRICT;
CREATE UNIQUE INDEX IF NOT EXISTS inbox_submissions_by_key
    ON inbox_submissions (key_sha256) WHERE key_sha256 IS NOT NULL;
CREATE INDEX IF NOT EXISTS inbox_submissions_due
    ON inbox_submissions (next_try_at, submission_seq) WHERE next_try_at IS NOT NULL;
-- For the oldest waiting submission, and for lists of waiting submissions.
CREATE INDEX IF NOT EXISTS inbox_submissions_waiting
    ON inbox_submissions (submission_seq) WHERE next_try_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS inbox_submissions_parked
    ON inbox_submissions (client_slug, submission_seq) WHERE next_try_at IS NULL AND processed_at IS NULL;
CREATE INDEX IF NOT EXISTS inbox_submissions_of_client ON inbox_submissions (client_slug, submission_seq);

-- At most one message for each submission.
CREATE TABLE IF NOT EXISTS inbox_messages (
    message_id     INTEGER PRIMARY KEY,
    submission_seq INTEGER NOT NULL UNIQUE REFERENCES inbox_submissions,
    client_slug    TEXT    NOT NULL,
    contact_id     INTEGER NOT NULL REFERENCES inbox_contacts,
    channel        TEXT    NOT NULL,
    body           TEXT    NOT NULL,
    source_url     TEXT,
    processed_at   INTEGER NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS inbox_messages_of_client ON inbox_messages (client_slug, message_id);
CREATE INDEX IF NOT EXISTS inbox_messages_of_contact ON inbox_messages (contact_id, message_id);
