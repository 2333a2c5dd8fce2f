//! The filter form of a list page: fills its fields from the query string, and builds the links to the live part and the
//! next page with the same filter.

use url::form_urlencoded;

/// The filter of a list page, without the cursor.
pub(super) struct QueryForm {
    /// The filter as a query string.
    filter: String,
    /// Whether the query string has a cursor, that is, this is not the first page.
    has_cursor: bool,
}

impl QueryForm {
    /// Reads a query string. Stores the values of known parameters in `fields`, exactly as they were typed; empty values
    /// count as absent.
    pub(super) fn read(text: &str, fields: &mut [(&str, &mut String)]) -> Self {
        let mut filter = form_urlencoded::Serializer::new(String::new());
        let mut has_cursor = false;
        for (name, value) in form_urlencoded::parse(text.as_bytes()).filter(|(_, value)| !value.is_empty()) {
            match fields.iter_mut().find(|(known, _)| *known == name) {
                Some((_, field)) => {
                    **field = value.to_string();
                    filter.append_pair(&name, &value);
                }
                None => has_cursor |= name == "cursor",
            }
        }
        Self { filter: filter.finish(), has_cursor }
    }

    /// The URL that the page polls for changes. `None` on further pages, which stay as they are.
    pub(super) fn live_url(&self, path: &str) -> Option<String> {
        (!self.has_cursor).then(|| self.url(path))
    }

    /// The URL of the list with this filter, from its first page.
    pub(super) fn url(&self, path: &str) -> String {
        format!("{path}?{}", self.filter)
    }

    /// The URL of the first page, if this is a further one.
    pub(super) fn first_url(&self, path: &str) -> Option<String> {
        self.has_cursor.then(|| self.url(path))
    }

    /// The URL of the next page.
    pub(super) fn next_url(&self, path: &str, cursor: &str) -> String {
        let separator = if self.filter.is_empty() { "" } else { "&" };
        format!("{path}?{}{separator}cursor={cursor}", self.filter)
    }
}
