-- Inbox submissions whose payload is application/x-www-form-urlencoded. The payload of all others is read as JSON.
-- Run inside one transaction; safe to run again.

CREATE TABLE IF NOT EXISTS inbox_forms (
    submission_seq INTEGER PRIMARY KEY REFERENCES inbox_submissions
) STRICT;
