"""The async client. The sync client is generated from it by clients/generate.py."""
