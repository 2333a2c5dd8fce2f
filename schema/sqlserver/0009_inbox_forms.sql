-- Inbox submissions whose payload is application/x-www-form-urlencoded. The payload of all others is read as JSON.
-- One batch; safe to run again.

IF OBJECT_ID('inbox_forms') IS NULL
BEGIN
    CREATE TABLE inbox_forms (
        submission_seq BIGINT NOT NULL CONSTRAINT inbox_forms_pk PRIMARY KEY
    );
END;
