//! Everything that an operator configures: settings (flags and environment variables), the registry files, and the API
//! clients that these files define.
//!
//! All errors of a file are reported at once, each with its location. This folder only reads and checks configuration; the
//! folders above it act on it.

mod console_settings;
pub mod identity;
pub mod json_fields;
pub mod registry;
pub mod session_key;
pub mod settings;
mod values;
pub mod variables;
