-- Inbox submissions whose payload is application/x-www-form-urlencoded. All other payloads are JSON.
-- It runs within one transaction and can be repeated.

CREATE TABLE IF NOT EXISTS inbox_forms (
    submission_seq INTEGER PRIMARY KEY REFERENCES inbox_submissions
) STRICT;
