//! Reads the form of a page that was sent by POST.

use actix_web::web;
use url::form_urlencoded;

use crate::web::WebDeps;
use crate::web::error::ApiError;

/// The size of the largest form: a thousand ids of the maximum length.
const MAX_BYTES: usize = 1024 * 1024;

/// The fields of a form, in order. Values are trimmed.
pub(super) struct Form(Vec<(String, String)>);

impl Form {
    pub(super) async fn read(deps: &WebDeps, payload: web::Payload) -> Result<Self, ApiError> {
        let (body, _reservation) = deps.bodies.read(payload, MAX_BYTES).await?;
        Ok(Self::parse(&body))
    }

    pub(super) fn parse(body: &[u8]) -> Self {
        let fields = form_urlencoded::parse(body).map(|(name, value)| (name.into_owned(), value.trim().to_owned()));
        Self(fields.collect())
    }

    /// The value of a field, empty if it is absent.
    pub(super) fn text(&self, name: &str) -> &str {
        self.all(name).next().unwrap_or_default()
    }

    /// All values of a field that can occur more than once.
    pub(super) fn all<'a, 'n>(&'a self, name: &'n str) -> impl Iterator<Item = &'a str> + use<'a, 'n> {
        self.0.iter().filter(move |(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Whether a field is present. A checkbox is present if it is ticked.
    pub(super) fn has(&self, name: &str) -> bool {
        self.all(name).next().is_some()
    }
}
