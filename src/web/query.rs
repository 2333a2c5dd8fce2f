//! Parses query strings strictly: an unknown parameter or a repeated one is an error, so that a misspelled filter is not
//! ignored. An empty value counts as absent.

use std::collections::HashMap;

use url::form_urlencoded;

use super::error::ApiError;

/// The parameters of a query string.
pub struct Query(HashMap<String, String>);

impl Query {
    /// Parses a query string that may have the parameters in `known`.
    pub fn parse(query: &str, known: &[&str]) -> Result<Self, ApiError> {
        let mut values = HashMap::new();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            if !known.contains(&name.as_ref()) {
                let known = known.join(", ");
                return Err(ApiError::InvalidRequest(format!(
                    "unknown parameter {name:?}; the parameters are {known}"
                )));
            }
            if values.insert(name.clone().into_owned(), value.into_owned()).is_some() {
                return Err(ApiError::InvalidRequest(format!("the parameter {name} appears more than once")));
            }
        }
        values.retain(|_, value| !value.is_empty());
        Ok(Self(values))
    }

    /// The value of a parameter, read by `parse`. If `parse` returns `None`, the error says that the value must be
    /// `expected`.
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

/// Parses a whole number of zero or more. A number that does not fit becomes `u64::MAX`, which is above every limit.
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
