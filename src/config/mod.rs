//! Everything an operator configures: settings (flags and environment variables), the registry files and the callers that
//! they name.
//!
//! All errors of a file are reported at once, each with its location. Nothing here has an effect of its own.

pub mod identity;
pub mod json_fields;
pub mod registry;
pub mod settings;
mod values;
pub mod variables;
