//! What a list was asked for: into its fields as it was written, and again into the links of its pages.

use url::form_urlencoded;

/// The query of a list without its place in it.
pub struct Asked {
    kept: String,
    /// A further page, which stays as it is.
    further: bool,
}

impl Asked {
    /// Reads the values of known names into where they belong; empty ones count as absent.
    pub fn read(text: &str, fields: &mut [(&str, &mut String)]) -> Self {
        let mut kept = form_urlencoded::Serializer::new(String::new());
        let mut further = false;
        for (name, value) in form_urlencoded::parse(text.as_bytes()).filter(|(_, value)| !value.is_empty()) {
            match fields.iter_mut().find(|(known, _)| *known == name) {
                Some((_, field)) => {
                    **field = value.to_string();
                    kept.append_pair(&name, &value);
                }
                None => further |= name == "cursor",
            }
        }
        Self { kept: kept.finish(), further }
    }

    /// What to ask for again and again, if that is to be done.
    pub fn live(&self, path: &str) -> Option<String> {
        (!self.further).then(|| format!("{path}?{}", self.kept))
    }

    pub fn next(&self, path: &str, cursor: &str) -> String {
        let separator = if self.kept.is_empty() { "" } else { "&" };
        format!("{path}?{}{separator}cursor={cursor}", self.kept)
    }
}
