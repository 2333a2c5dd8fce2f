-- The inbox: submissions as they were received, and the contacts and messages made of them.
-- It is one batch and can be repeated.

IF OBJECT_ID('inbox_contacts') IS NULL
BEGIN
    CREATE TABLE inbox_contacts (
        contact_id  BIGINT IDENTITY(1, 1) NOT NULL CONSTRAINT inbox_contacts_pk PRIMARY KEY,
        client_slug NVARCHAR(200) COLLATE Latin1_General_100_BIN2 NOT NULL,
        -- Trimmed and in lower case.
        email       NVARCHAR(640) COLLATE Latin1_General_100_BIN2 NULL,
        -- In the format E.164 if possible.
        phone       NVARCHAR(80) COLLATE Latin1_General_100_BIN2 NULL,
        name        NVARCHAR(400) NULL,
        created_at  DATETIME2(6)  NOT NULL
    );
    CREATE UNIQUE INDEX inbox_contacts_by_email ON inbox_contacts (client_slug, email) WHERE email IS NOT NULL;
    CREATE INDEX inbox_contacts_by_phone ON inbox_contacts (client_slug, phone) WHERE phone IS NOT NULL;
    -- Contacts with different emails may share a phone. Of contacts without an email, one has the phone.
    CREATE UNIQUE INDEX inbox_contacts_of_phone ON inbox_contacts (client_slug, phone)
        WHERE email IS NULL AND phone IS NOT NULL;
    CREATE INDEX inbox_contacts_of_client ON inbox_contacts (client_slug, contact_id);
END;

IF OBJECT_ID('inbox_submissions') IS NULL
BEGIN
    CREATE TABLE inbox_submissions (
        submission_seq BIGINT IDENTITY(1, 1) NOT NULL CONSTRAINT inbox_submissions_pk PRIMARY KEY,
        id             VARCHAR(36) COLLATE Latin1_General_100_BIN2 NOT NULL CONSTRAINT inbox_submissions_id UNIQUE,
        client_slug    NVARCHAR(200) COLLATE Latin1_General_100_BIN2 NOT NULL,
        channel        VARCHAR(10) COLLATE Latin1_General_100_BIN2 NOT NULL,
        -- The bytes as they were received.
        payload        VARBINARY(MAX) NOT NULL,
        source_url     NVARCHAR(4000) NULL,
        -- The SHA-256 of client and idempotency key, if the request had one, and the SHA-256 of the content.
        key_sha256     BINARY(32)     NULL,
        content_sha256 BINARY(32)     NOT NULL,
        created_at     DATETIME2(6)   NOT NULL,
        processed_at   DATETIME2(6)   NULL,
        -- How often processing failed, and the last error.
        tries          BIGINT         NOT NULL,
        error          NVARCHAR(MAX)  NULL,
        -- Set while the submission waits to be processed. A row with neither this nor processed_at is parked.
        next_try_at    DATETIME2(6)   NULL,
        message_id     BIGINT         NULL
    );
    CREATE UNIQUE INDEX inbox_submissions_by_key ON inbox_submissions (key_sha256) WHERE key_sha256 IS NOT NULL;
    CREATE INDEX inbox_submissions_due ON inbox_submissions (next_try_at, submission_seq) WHERE next_try_at IS NOT NULL;
    -- For the oldest waiting submission, and for lists of waiting submissions.
    CREATE INDEX inbox_submissions_waiting ON inbox_submissions (submission_seq)
        INCLUDE (next_try_at, tries, client_slug) WHERE next_try_at IS NOT NULL;
    CREATE INDEX inbox_submissions_parked ON inbox_submissions (client_slug, submission_seq)
        INCLUDE (next_try_at, processed_at) WHERE next_try_at IS NULL AND processed_at IS NULL;
    CREATE INDEX inbox_submissions_of_client ON inbox_submissions (client_slug, submission_seq);
END;

-- At most one message for each submission.
IF OBJECT_ID('inbox_messages') IS NULL
BEGIN
    CREATE TABLE inbox_messages (
        message_id     BIGINT IDENTITY(1, 1) NOT NULL CONSTRAINT inbox_messages_pk PRIMARY KEY,
        submission_seq BIGINT         NOT NULL CONSTRAINT inbox_messages_submission UNIQUE,
        client_slug    NVARCHAR(200) COLLATE Latin1_General_100_BIN2 NOT NULL,
        contact_id     BIGINT         NOT NULL,
        channel        VARCHAR(10) COLLATE Latin1_General_100_BIN2 NOT NULL,
        body           NVARCHAR(MAX)  NOT NULL,
        source_url     NVARCHAR(4000) NULL,
        processed_at   DATETIME2(6)   NOT NULL
    );
    CREATE INDEX inbox_messages_of_client ON inbox_messages (client_slug, message_id);
    CREATE INDEX inbox_messages_of_contact ON inbox_messages (contact_id, message_id);
END;
