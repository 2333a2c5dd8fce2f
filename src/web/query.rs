//! Query strings: known names only, each at most once, empty values count as absent.

use std::collections::HashMap;

use url::form_urlencoded;

use super::error::ApiError;

pub struct Query(HashMap<String, String>);

impl Query {
    pub fn parse(query: &str, known: &[&str]) -> Result<Self, ApiError> {
        let mut values = HashMap::new();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            if !known.contains(&name.as_ref()) {
                let known = known.join(", ");
                return Err(ApiError::InvalidRequest(format!("{name:?} is not a parameter here; known are {known}")));
            }
            if values.insert(name.clone().into_owned(), value.into_owned()).is_some() {
                return Err(ApiError::InvalidRequest(format!("{name} must be given once")));
            }
        }
        values.retain(|_, value| !value.is_empty());
        Ok(Self(values))
    }

    /// The value of a parameter as `parse` reads it; `expected` says what that takes.
    pub fn get<T>(
        &self,
        name: &str,
        expected: &str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, ApiError> {
        let Some(text) = self.0.get(name) else { return Ok(None) };
        parse(text)
            .map(Some)
            .ok_or_else(|| ApiError::InvalidRequest(format!("{name} must be {expected}, not {text:?}")))
    }
}

/// A whole number of zero or more. One that is too large to hold is larger than any limit, and counts as such.
pub fn whole_number(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_of_any_length() {
        let long = "9".repeat(100);
        for (text, number) in [
            ("0", Some(0)),
            ("007", Some(7)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", Some(u64::MAX)),
            (long.as_str(), Some(u64::MAX)),
            ("-1", None),
            (&format!("-{long}"), None),
            (&format!("{long}.5"), None),
            ("1e3", None),
            ("+1", None),
            ("١", None),
            ("", None),
        ] {
            assert_eq!(whole_number(text), number, "{text}");
        }
    }
}
