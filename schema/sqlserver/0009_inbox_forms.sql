-- Inbox submissions whose payload is application/x-www-form-urlencoded. All other payloads are JSON.
-- It is one batch and can be repeated.

IF OBJECT_ID('inbox_forms') IS NULL
BEGIN
    CREATE TABLE inbox_forms (
        submission_seq BIGINT NOT NULL CONSTRAINT inbox_forms_pk PRIMARY KEY
    );
END;
