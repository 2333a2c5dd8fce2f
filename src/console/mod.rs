//! What operators see. Server-rendered HTML, everything escaped by the templates.

pub mod history;
